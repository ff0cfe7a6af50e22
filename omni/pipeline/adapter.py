"""The adapter contract: what an edge does to payloads on their way from producer to consumer."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from omni.payload import Payload


class Adapter(Protocol):
    """Turns one request's produced payloads into the consumer's inputs, incrementally. Host work only, brief, and in order.

    It touches no tensor's contents. A tensor it passes on must be passed on by the same `push` that brought it: what is not
    passed on is released to the producer at once. A page slice is passed on as the object it is: its producer may move its rows.
    """

    def push(self, payload: Payload) -> Sequence[Payload]:
        """Consumer inputs that `payload` completes, perhaps none."""
        ...

    def finish(self, reason: str) -> Sequence[Payload]:
        """Consumer inputs that only the producer's end (`reason`, as in `Done`) completes. Called once, last."""
        ...


class AdapterFactory(Protocol):
    """What `Edge.adapter` names. Called once for each request that uses the edge."""

    def __call__(self, args: msgspec.Struct | None) -> Adapter:
        """args: what the front end prepared for this edge and request, or None."""
        ...


class PassThrough:
    """The adapter of an edge whose consumer takes what the producer gives."""

    def __init__(self, args: msgspec.Struct | None = None) -> None:
        pass

    def push(self, payload: Payload) -> Sequence[Payload]:
        return (payload,)

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()
