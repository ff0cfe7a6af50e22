"""What a connector promises. No call blocks the host or the device.

| object | made by | used by | gone when |
|---|---|---|---|
| `Ref` | `send`, on the producer's side | the producer, to know when its memory is free again | `freed` |
| `Pending` | `receive`, on the consumer's side | the orchestrator, which polls it | it has given its `Received` |
| `Received` | `Pending.poll` | the consumer, which gathers once `ready` is done | `release(ref, after)` and `after` is done |
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from omni.device import Event, Stream
from omni.payload import Payload


class Reach(Enum):
    """How far apart producer and consumer may be."""

    PROCESS = "process"
    HOST = "host"
    NETWORK = "network"


class Ref(Protocol):
    """One payload under way."""

    @property
    def released(self) -> bool:
        """Whether the consumer has let go of the payload: released or aborted, the release event perhaps not done yet.

        Until then the producer may move the rows of a page slice (`PageSlice.relocate`).
        """
        ...

    @property
    def freed(self) -> bool:
        """Whether the producer may reuse the payload's memory: released or aborted, and the release event is done."""
        ...


@dataclass(frozen=True, slots=True)
class Received:
    """A payload on the consumer's side. Its tensors may be read by work enqueued once `ready` is done."""

    payload: Payload
    ready: Event


class Pending(Protocol):
    """A payload on its way to the consumer."""

    def poll(self) -> Received | None:
        """The payload once the consumer may look at it, None before. Never blocks. Raises OmniError if it was lost."""
        ...


class Connector(Protocol):
    """Moves payloads over one edge of the graph.

    A connector that reads page slices itself is their consumer, and keeps what `PageSlice` asks of one.
    """

    @property
    def reach(self) -> Reach: ...

    @property
    def raw_device_tensors(self) -> bool:
        """Whether device tensors travel as they are, without a bounce through the host."""
        ...

    def send(self, payload: Payload, ready: Event, stream: Stream) -> Ref:
        """Takes a payload whose tensors may be read once `ready` is done. Work it needs goes on `stream`."""
        ...

    def receive(self, ref: Ref, stream: Stream) -> Pending:
        """Starts the arrival of `ref` on the consumer's side. Work it needs goes on `stream`."""
        ...

    def release(self, ref: Ref, after: Event) -> None:
        """The consumer is done with the payload when `after` is."""
        ...

    def abort(self, ref: Ref, reason: str) -> None:
        """Gives up a payload that nobody will gather any more. Idempotent; a no-op after `release`."""
        ...

    def close(self) -> None:
        """Frees what the connector holds. Idempotent."""
        ...
