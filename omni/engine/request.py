"""Engine commands, and the outputs of requests."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

import msgspec
import torch

from omni.engine.peer_messages import Link
from omni.errors import OmniError, StageError, error_text
from omni.payload import Payload
from omni.sampling import HostRules, SamplingParams, TextRules
from omni.utils.log import safe_logger

_log = safe_logger(__name__)
_RAISED = "the sink of request %s raised"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A prepared request.

    modalities: wanted outputs. inputs: host payloads by stage. edges: adapter arguments by edge name. sampling: by
    stage. priority: lower numbers are served first. cache_salt: requests of different salts share no cached state.
    sample_index: the number of this sample among those of one user request.
    number: its place in the order of all requests, from 1; 0 for a request of one engine alone.
    places: of its stages, by stage, if they run in several engines. Each engine gets the whole request, but only the
        inputs of its own stages.
    has_listener: whether a listener plays its sound while it is made.
    rules: host-side rules by stage. text_rules: the same as data, for an engine in another process, which builds them.
    """

    id: str
    modalities: frozenset[str]
    inputs: Mapping[str, Sequence[Payload]]
    _: KW_ONLY
    edges: Mapping[str, msgspec.Struct] = field(default_factory=dict)
    sampling: Mapping[str, SamplingParams] = field(default_factory=dict)
    priority: int = 0
    cache_salt: str = ""
    sample_index: int = 0
    rules: Mapping[str, HostRules] = field(default_factory=dict)
    text_rules: Mapping[str, TextRules] = field(default_factory=dict)
    number: int = 0
    places: Mapping[str, str] = field(default_factory=dict)
    has_listener: bool = True


@dataclass(frozen=True, slots=True)
class StageOutput:
    """A piece of a wanted output. meta: `GeneratedTokens`, `LogprobsChunk`, `AudioChunk` or a stage kind's type. tensors:
    in host memory, the receiver's own."""

    modality: str
    meta: msgspec.Struct
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageFinished:
    """One stage has finished the request. reason: `"stop"`, `"length"`, `"empty"`, ... counts: totals (`"tokens"`,
    ...).

    withheld: generated tokens that were not emitted, because a stop string ends in them.
    """

    stage: str
    reason: str
    counts: Mapping[str, int]
    withheld: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """All wanted outputs are complete. The last message."""


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The request was aborted, and its resources are being freed. The last message."""

    error: OmniError


EngineOutput = StageOutput | StageFinished | RequestFinished | RequestFailed
Sink = Callable[[EngineOutput], None]
"""Receives a request's outputs on the engine's thread; must be brief. If it raises, its request is aborted."""


class UnsendableOutput(Exception):
    """A sink cannot take an output, because of values that a plugin put there."""


class SafeSink:
    """A sink whose errors affect its own request only."""

    def __init__(self, request_id: str, sink: Sink) -> None:
        self._request_id = request_id
        self._sink = sink

    def give(self, output: EngineOutput) -> None:
        """Passes an output to the sink. Raises UnsendableOutput, and StageError if the sink raises otherwise; the caller then
        aborts the request."""
        try:
            self._sink(output)
        except UnsendableOutput:
            raise
        except Exception as error:
            _log.exception(_RAISED, self._request_id)
            raise StageError("sink", "taking an output", error_text(error)) from error

    def finish(self, output: RequestFinished | RequestFailed) -> None:
        """Passes the last output. The request is finished, even if the sink raises."""
        try:
            self._sink(output)
        except Exception:
            _log.exception(_RAISED, self._request_id)


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    request: EngineRequest
    sink: SafeSink


@dataclass(frozen=True, slots=True)
class AbortRequest:
    """number: as in `EngineRequest`: no request of an earlier number is still to come."""

    request_id: str
    error: OmniError
    number: int = 0


@dataclass(frozen=True, slots=True)
class ConnectPeer:
    """Connects to the engine on a place.

    on_connected: called with None, or with the error that makes it impossible. on_lost: called when the connection ends
        later, before the requests that need it fail.
    """

    place: str
    link: Link
    on_connected: Callable[[OmniError | None], None]
    on_lost: Callable[[], None] = lambda: None


EngineCommand = SubmitRequest | AbortRequest | ConnectPeer
