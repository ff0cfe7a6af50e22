"""The adapter contract: how an edge turns produced payloads into inputs of the consumer."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from omni.payload import Payload


class Adapter(Protocol):
    """Turns one request's produced payloads into the consumer's inputs, incrementally. Host work only, brief, and in order.

    It does not touch the contents of tensors. A tensor must be passed on by the `push` that got it: others are released to the
    producer at once. A page slice is passed on as the same object: its producer may move its rows.
    """

    def push(self, payload: Payload) -> Sequence[Payload]:
        """Consumer inputs that `payload` completes, perhaps none."""
        ...

    def finish(self, reason: str) -> Sequence[Payload]:
        """Consumer inputs that the producer's end completes. reason: as of `Done`. Called once, last."""
        ...


class AdapterFactory(Protocol):
    """The type of `Edge.adapter`. Called once for each request that uses the edge."""

    def __call__(self, args: msgspec.Struct | None) -> Adapter:
        """args: of the front end for this edge and request, or None."""
        ...


class PassThrough:
    """The adapter of an edge whose consumer takes the producer's payloads unchanged."""

    def __init__(self, args: msgspec.Struct | None = None) -> None:
        pass

    def push(self, payload: Payload) -> Sequence[Payload]:
        return (payload,)

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()
