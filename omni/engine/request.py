"""What the front end tells the engine, and what the engine tells back."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from omni.errors import OmniError, StageError, said
from omni.payload import Payload
from omni.sampling import HostRules, SamplingParams

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A prepared request.

    modalities: wanted outputs. inputs: host payloads by stage. edges: adapter arguments by edge name. sampling: by stage.
    priority: the lower is served first. cache_salt: requests of different salts share nothing that is cached.
    sample_index: which sample of what was asked for this is. rules: by stage, what only the host can tell of its tokens.
    """

    id: str
    modalities: frozenset[str]
    inputs: Mapping[str, Sequence[Payload]]
    edges: Mapping[str, msgspec.Struct] = field(default_factory=dict)
    sampling: Mapping[str, SamplingParams] = field(default_factory=dict)
    priority: int = 0
    cache_salt: str = ""
    sample_index: int = 0
    rules: Mapping[str, HostRules] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageOutput:
    """A piece of a wanted output. meta: `GeneratedTokens`, `TokenLogprobs`, `AudioChunk` or what the stage's kind defines."""

    modality: str
    meta: msgspec.Struct


@dataclass(frozen=True, slots=True)
class StageFinished:
    """One stage is done with the request. reason: `"stop"`, `"length"`, `"empty"`, ... counts: totals (`"tokens"`, ...).

    held: generated tokens that were not given out, since the text ends within them.
    """

    stage: str
    reason: str
    counts: Mapping[str, int]
    held: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """Everything wanted has been given. The last message."""


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The request was given up and everything it held is being freed. The last message."""

    error: OmniError


EngineOutput = StageOutput | StageFinished | RequestFinished | RequestFailed
Sink = Callable[[EngineOutput], None]
"""Takes a request's outputs on the engine's thread; must be brief. If it raises, its request is given up."""


class Outlet:
    """Gives a request's outputs to its sink. A sink that raises harms its own request only."""

    def __init__(self, request_id: str, sink: Sink) -> None:
        self._request_id = request_id
        self._sink = sink

    def give(self, output: EngineOutput) -> None:
        """Raises StageError if the sink raises: then its request is to be given up."""
        try:
            self._sink(output)
        except Exception as error:
            self._report()
            raise StageError("sink", "taking an output", said(error)) from error

    def end(self, output: RequestFinished | RequestFailed) -> None:
        """The last output. The request is over, also if the sink raises."""
        try:
            self._sink(output)
        except Exception:
            self._report()

    def _report(self) -> None:
        _log.exception("the sink of request %s raised", self._request_id)
