"""The connector contract. No call blocks the host or the device.

| object | made by | used by | lives until |
|---|---|---|---|
| `Ref` | `send`, on the producer's side | the producer, which reuses the memory after `freed` | `freed` |
| `Pending` | `receive`, on the consumer's side | the orchestrator, which polls it | `poll` returns the `Received` |
| `Received` | `Pending.poll` | the consumer, which gathers after `ready` | `release(ref, after)` and `after` is done |
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from omni.device import Event, Stream
from omni.payload import Payload


class Reach(Enum):
    """The distance between producer and consumer that a connector covers."""

    PROCESS = "process"
    HOST = "host"
    NETWORK = "network"


class Ref(Protocol):
    """A payload on its way to the consumer, as the producer sees it."""

    @property
    def released(self) -> bool:
        """Whether the payload is released or aborted. The release event may not be done yet.

        Until then the producer may move the rows of a page slice (`PageSlice.relocate`).
        """
        ...

    @property
    def freed(self) -> bool:
        """Whether the producer may reuse the payload's memory: released or aborted, and the release event is done."""
        ...


@dataclass(frozen=True, slots=True)
class Received:
    """A payload on the consumer's side. Work that is enqueued after `ready` is done may read its tensors."""

    payload: Payload
    ready: Event


class Pending(Protocol):
    """A payload on its way, as the consumer sees it."""

    def poll(self) -> Received | None:
        """The payload once the consumer may read it, None before. Never blocks. Raises OmniError for a lost payload."""
        ...


class Connector(Protocol):
    """Moves payloads over one edge of the graph.

    A connector that reads page slices itself is their consumer and follows the rules of `PageSlice`.
    """

    @property
    def reach(self) -> Reach: ...

    @property
    def raw_device_tensors(self) -> bool:
        """Whether device tensors are passed directly, without a copy through the host."""
        ...

    def send(self, payload: Payload, ready: Event, stream: Stream) -> Ref:
        """Sends a payload. Its tensors may be read once `ready` is done. Necessary work goes on `stream`."""
        ...

    def receive(self, ref: Ref, stream: Stream) -> Pending:
        """Starts to receive `ref` on the consumer's side. Necessary work goes on `stream`."""
        ...

    def release(self, ref: Ref, after: Event) -> None:
        """Reports that the consumer is done with the payload once `after` is done."""
        ...

    def abort(self, ref: Ref, reason: str) -> None:
        """Gives up a payload that no consumer will gather any more. Idempotent; a no-op after `release`."""
        ...

    def close(self) -> None:
        """Frees the connector's resources. Idempotent."""
        ...
