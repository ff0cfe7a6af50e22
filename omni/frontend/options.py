"""Settings of the front end."""

from collections.abc import Sequence
from typing import cast

import msgspec

from omni.config import Layer, Setting, overlay
from omni.frontend.base import ControlTokensIn
from omni.media.options import MediaOptions
from omni.pipeline import FRONTEND


class FrontendOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How requests are prepared.

    media: sources and sizes of pictures and sound. control_tokens: whether the written form of a control token in a user's text,
    such as `<|im_end|>`, is `"text"`, or the token, as in transformers: `"tokens"`.
    """

    media: MediaOptions = MediaOptions()
    control_tokens: ControlTokensIn = "text"


def frontend_options(layers: Sequence[Layer]) -> tuple[FrontendOptions, tuple[Setting, ...]]:
    """The front end's options from layers, and the origin of each. Raises ConfigError."""
    options, settings = overlay({FRONTEND: FrontendOptions()}, [layer.only(FRONTEND) for layer in layers])
    return cast(FrontendOptions, options[FRONTEND]), settings
