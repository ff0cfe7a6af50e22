"""The public interface: `Omni`, `AsyncOmni` and their outputs."""

from omni.api.async_omni import AsyncOmni, AsyncOutputStream
from omni.api.hidden_states import HiddenStates, HiddenStatesArguments
from omni.api.omni import Omni, OutputStream
from omni.api.request import GenerateArguments
from omni.api.results import Metrics, Output, Result, StageMetrics, TokenLogprob, Usage

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
