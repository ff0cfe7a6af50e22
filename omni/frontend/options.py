"""Settings of the front end."""

from collections.abc import Sequence
from typing import cast

import msgspec

from omni.config import Setting, SettingsLayer, overlay
from omni.frontend.base import ControlTokensIn
from omni.media.options import MediaOptions
from omni.pipeline import FRONTEND


class FrontendOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the front end. media: sources and sizes of pictures and sound. control_tokens: whether the written form of a
    control token in a user's text, such as `<|im_end|>`, is `"text"`, or the token, as in transformers: `"tokens"`.

    switch_interval: seconds after which a thread that runs Python gives way to one that waits, while a model is open
    (`sys.setswitchinterval`; a smaller value of the program stays). None leaves it at Python's 5 ms, and every step of a request
    through the front end may wait so long beside a busy thread. gc_freeze: whether objects that exist when the model is open are
    excluded from garbage collection until all models are closed (`gc.freeze`). A full collection stops all threads of the program
    for 0.2 s or more with the objects that torch and transformers make.
    """

    media: MediaOptions = MediaOptions()
    control_tokens: ControlTokensIn = "text"
    switch_interval: float | None = 0.00002
    gc_freeze: bool = True

    def __post_init__(self) -> None:
        if self.switch_interval is not None and not 1e-5 <= self.switch_interval <= 1:
            raise ValueError("switch_interval must be 0.00001 to 1 second")


def frontend_options(layers: Sequence[SettingsLayer]) -> tuple[FrontendOptions, tuple[Setting, ...]]:
    """The front end's options from layers, and the origin of each. Raises ConfigError."""
    options, settings = overlay({FRONTEND: FrontendOptions()}, [layer.only(FRONTEND) for layer in layers])
    return cast(FrontendOptions, options[FRONTEND]), settings
