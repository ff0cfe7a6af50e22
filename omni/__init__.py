"""Streaming runtime for models that are several models in a row: text, images and sound in, text and speech out.

    from omni import Omni

    with Omni("path/or/hub-id") as omni:
        for out in omni.generate("Say hello."):
            print(out.text, end="")

Names are imported when first used, so that plugin entry modules and the command line start without torch.

docs/public.md lists the public names; others may change in any version.
"""

from importlib import import_module

from omni.version import __version__

# True for type checkers alone. The command line handles no signal before this module is loaded, and typing is slow to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from omni.api import AsyncOmni, HiddenStates, Metrics, Omni, Output, Result, StageMetrics, TokenLogprob, Usage
    from omni.errors import (
        CheckpointError,
        ConfigError,
        InputError,
        LostPeerError,
        OmniError,
        OverloadedError,
        PluginError,
        StageError,
    )
    from omni.hookspecs import hookimpl
    from omni.sampling import SamplingParams, StructuredOutput

__all__ = [
    "AsyncOmni",
    "CheckpointError",
    "ConfigError",
    "HiddenStates",
    "InputError",
    "LostPeerError",
    "Metrics",
    "Omni",
    "OmniError",
    "Output",
    "OverloadedError",
    "PluginError",
    "Result",
    "SamplingParams",
    "StageError",
    "StageMetrics",
    "StructuredOutput",
    "TokenLogprob",
    "Usage",
    "__version__",
    "hookimpl",
]

_HOMES = {
    "omni.api.async_omni": ("AsyncOmni",),
    "omni.api.hidden_states": ("HiddenStates",),
    "omni.api.omni": ("Omni",),
    "omni.api.results": ("Metrics", "Output", "Result", "StageMetrics", "TokenLogprob", "Usage"),
    "omni.errors": (
        "CheckpointError",
        "ConfigError",
        "InputError",
        "LostPeerError",
        "OmniError",
        "OverloadedError",
        "PluginError",
        "StageError",
    ),
    "omni.hookspecs": ("hookimpl",),
    "omni.sampling": ("SamplingParams", "StructuredOutput"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

# Hidden from type checkers, which would otherwise accept every misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'omni' has no attribute {name!r}")
        value = vars(import_module(_HOME_OF[name]))[name]
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
