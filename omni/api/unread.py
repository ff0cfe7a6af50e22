"""A bound on the outputs that a program has not read."""

from collections.abc import Callable

from omni.api.request import Event
from omni.engine import RequestFailed, RequestFinished, StageOutput
from omni.errors import OverloadedError
from omni.payload import AudioChunk, GeneratedTokens, TokenLogprobs

_EVENT_BYTES = 500
"""Of the objects of an event, about."""
_TOKEN_BYTES = 40


class Unread:
    """Host memory of one answer's events between `deliver` and `took`. An answer beyond its limit is cancelled: what was made
    before can be read, and then the error comes.

    `deliver` is for one thread at a time, and `took` for another one: each has a count of its own.
    """

    def __init__(self, put: Callable[[float, Event], None], most: int) -> None:
        """put: into the queue of the reader. most: bytes."""
        self._put = put
        self._most = most
        self._delivered = 0
        self._taken = 0
        self._full = False
        self.cancel: Callable[[OverloadedError], object] = _no_effect
        """Ends the answer. Called from `deliver`, once."""

    def deliver(self, at: float, event: Event) -> None:
        if isinstance(event, RequestFinished | RequestFailed):
            # It refers to what calls this.
            self.cancel = _no_effect
            self._put(at, event)
        elif not self._full:
            self._delivered += size_of(event)
            if self._delivered - self._taken <= self._most:
                self._put(at, event)
            else:
                self._full = True
                problem = f"this answer has more than {self._most:,} bytes of outputs that were not read"
                self.cancel(OverloadedError("engine.max_unread_bytes", problem, "read them sooner, or raise it"))

    def took(self, event: Event) -> None:
        self._taken += size_of(event)


def _no_effect(error: OverloadedError) -> None: ...


def size_of(event: Event) -> int:
    """Bytes of host memory, about."""
    match event:
        case StageOutput(meta=GeneratedTokens() as tokens, tensors=tensors):
            size = _TOKEN_BYTES * len(tokens.ids)
        case StageOutput(meta=AudioChunk() as audio, tensors=tensors):
            size = audio.samples.nbytes
        case StageOutput(meta=TokenLogprobs() as scores, tensors=tensors):
            size = scores.ids.nbytes + scores.logprobs.nbytes + scores.ranks.nbytes
        case StageOutput(tensors=tensors):
            size = 0
        case _:
            return _EVENT_BYTES
    return _EVENT_BYTES + size + sum(tensor.nbytes for tensor in tensors.values())
