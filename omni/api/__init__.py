"""The public interface: `Omni`, `AsyncOmni` and their outputs."""

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
