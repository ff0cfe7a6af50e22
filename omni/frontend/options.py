"""Settings of the front end."""

from collections.abc import Sequence
from typing import cast

import msgspec

from omni.config import Layer, Setting, overlay
from omni.frontend.base import ControlTokensIn
from omni.media.options import MediaOptions
from omni.pipeline import FRONTEND


class FrontendOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How requests are read and prepared.

    media: where pictures and sound may come from. control_tokens: what the written form of a control token, such as `<|im_end|>`,
    is in what a request says: `"text"`, or `"tokens"`, as in transformers.
    """

    media: MediaOptions = MediaOptions()
    control_tokens: ControlTokensIn = "text"


def frontend_options(layers: Sequence[Layer]) -> tuple[FrontendOptions, tuple[Setting, ...]]:
    """What layers set below `frontend`, and the origins. Raises ConfigError."""
    options, settings = overlay({FRONTEND: FrontendOptions()}, [layer.only(FRONTEND) for layer in layers])
    return cast(FrontendOptions, options[FRONTEND]), settings
