"""The adapter contract: the conversion of produced payloads into inputs of the consumer."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from omni.payload import Payload


class Adapter(Protocol):
    """Converts one request's produced payloads into the consumer's inputs, incrementally. Host work only, brief, and in
    order.

    It does not access the contents of tensors. A tensor must be passed on by the `push` that received it; other tensors
    are released to the producer at once. A page slice is passed on as the same object, since its producer may move its
    rows.
    """

    def push(self, payload: Payload) -> Sequence[Payload]:
        """Converts a payload. Returns the consumer inputs that it completes, possibly none."""
        ...

    def finish(self, reason: str) -> Sequence[Payload]:
        """Returns the consumer inputs that the producer's end completes. reason: as in `Done`. Called once, last."""
        ...


class AdapterFactory(Protocol):
    """The type of `Edge.adapter`. Called once for each request that uses the edge."""

    def __call__(self, args: msgspec.Struct | None) -> Adapter:
        """args: the front end's arguments for this edge and request, or None."""
        ...


class PassThrough:
    """The adapter of an edge whose consumer takes the producer's payloads unchanged."""

    def __init__(self, args: msgspec.Struct | None = None) -> None:
        pass

    def push(self, payload: Payload) -> Sequence[Payload]:
        return (payload,)

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()
