"""The public interface: `Omni`, `AsyncOmni` and their outputs.

Names are imported when first used: a model that is opened starts its engine's process before torch is imported here.
"""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from omni.api.arguments import GenerateArguments
    from omni.api.async_omni import AsyncOmni
    from omni.api.hidden_states import HiddenStates, HiddenStatesArguments
    from omni.api.omni import Omni
    from omni.api.results import Metrics, Output, Result, StageMetrics, TokenLogprob, Usage
    from omni.api.stream import AsyncOutputStream, OutputStream

__all__ = [
    "AsyncOmni",
    "AsyncOutputStream",
    "GenerateArguments",
    "HiddenStates",
    "HiddenStatesArguments",
    "Metrics",
    "Omni",
    "Output",
    "OutputStream",
    "Result",
    "StageMetrics",
    "TokenLogprob",
    "Usage",
]

_HOME_OF = {
    "AsyncOmni": "async_omni",
    "AsyncOutputStream": "stream",
    "GenerateArguments": "arguments",
    "HiddenStates": "hidden_states",
    "HiddenStatesArguments": "hidden_states",
    "Metrics": "results",
    "Omni": "omni",
    "Output": "results",
    "OutputStream": "stream",
    "Result": "results",
    "StageMetrics": "results",
    "TokenLogprob": "results",
    "Usage": "results",
}

# Hidden from type checkers, which would otherwise accept every misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'omni.api' has no attribute {name!r}")
        value = vars(import_module(f"omni.api.{_HOME_OF[name]}"))[name]
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
