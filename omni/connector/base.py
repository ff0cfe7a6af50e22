"""The connector contract. No call blocks the host or the device; an engine calls all of them on its own thread.

A connector has two ends, which may be in two processes. The engine carries small *pieces* from the sender to the
receiver, in order; tensors do not travel with them. A payload takes one piece or several.

| object | made by | used by | lives until |
|---|---|---|---|
| `Sender` | `Connector.sender`, in the producer's engine | the route of every request | the engine closes |
| `Ref` | `Sender.send` | the producer, which reuses the memory after `freed`; the route, for `pieces` | `freed` |
| a piece | `Ref.pieces` | the receiver | the receiver has added it |
| `Receiver` | `Connector.receiver`, in the consumer's engine | the route of every request | the sender's engine ends |
| `Pending` | `Receiver.receive` | the route, which polls it; then the consumer's lease | `release` or `abort` |
| `Received` | `Pending.poll` | the consumer, which reads after `ready` | `Pending.release(after)` and `after` is done |

| memory | written by | read by | free when |
|---|---|---|---|
| the payload's | the producer's phases, before `ready` | the sender's copies, or the consumer's phases | `Ref.freed` |
| the connector's own (a pool) | the sender's copies | the receiver's copies, or the consumer's phases | it is acknowledged |
| `Received.payload` | as above | the consumer's phases | `Pending.release(after)` and `after` is done |

Rules for both ends:

- Events are polled (`Event.done`). They may be composites, so `Device.wait` does not take them.
- A receiver works in `receive`, `add` and `tick`, never in `poll`: the engine polls only the oldest payload of a request. `busy` is
  true while `tick` has work.
- A receiver may hand out memory of the pool, but bounded: the part beyond three quarters of the pool is copied into
  memory of its own at once. So a consumer that takes no inputs never keeps the sender from the payloads of other
  requests. A released payload whose `after` is not done counts as held.
- Beyond `Reach.PROCESS` page slices arrive gathered, as tensors, and every tensor is on the receiver's device.
- When the receiver's process has ended, the engine aborts the refs that are not sent, and calls `peer_lost`. When the
  sender's has ended, the engine closes the receiver once it is not `busy`; until then its consumers may read.
- Before `close` the engine waits for the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

import torch

from omni.device import Device, Event
from omni.payload import Payload


class Reach(Enum):
    """The distance between producer and consumer that a connector covers."""

    PROCESS = "process"
    HOST = "host"
    NETWORK = "network"


@dataclass(frozen=True, slots=True)
class EdgeEnd:
    """The end of an edge that a sender or a receiver is opened for.

    edge: its name; several places may have ends of one edge. device: of the stage at this end. pool_bytes:
    `Edge.pool_bytes`, 64 KiB to 1 TiB: the memory that the connector may take for payloads under way on this edge.
    producer, consumer: the places of the stages (`"cuda:1"`, `"cpu/2"`); `omni.engine.device_of` gives their devices.
    """

    edge: str
    device: Device
    pool_bytes: int
    producer: str = ""
    consumer: str = ""


@dataclass(frozen=True, slots=True)
class Received:
    """A payload on the consumer's side. Work that is enqueued after `ready` is done may read its tensors."""

    payload: Payload
    ready: Event


@runtime_checkable
class Ref(Protocol):
    """A payload under way, at its producer."""

    @property
    def released(self) -> bool:
        """Whether no more reads of the payload's memory are launched. Launched reads may still run.

        Until then the producer may move the rows of a page slice (`PageSlice.relocate`).
        """
        ...

    @property
    def freed(self) -> bool:
        """Whether the producer may reuse the payload's memory: released, and every read is complete."""
        ...

    @property
    def sent(self) -> bool:
        """Whether `pieces` has returned the last piece."""
        ...

    def pieces(self) -> Sequence[object]:
        """Advances the payload. Returns the pieces that the receiver may have now, in order, each once; often none.

        Beyond `Reach.PROCESS` a piece is a `msgspec.Struct`. Raises OmniError for a payload that is lost.
        """
        ...

    def abort(self, reason: str) -> None:
        """Returns no further piece. The receiver gives up those that it has. Idempotent; a no-op once `sent`."""
        ...


@runtime_checkable
class Sender(Protocol):
    """The producer's end."""

    @property
    def address(self) -> object:
        """The receiver's information for reaching this end. Beyond `Reach.PROCESS` a `msgspec.Struct`."""
        ...

    def send(self, payload: Payload, ready: Event) -> Ref:
        """Sends a payload. Its tensors may be read once `ready` is done and the rows of its page slices are in place.

        A sender that reads page slices follows the rules of `PageSlice`.
        """
        ...

    def peer_lost(self) -> None:
        """The receiver's process has ended, so its payloads have no reader. A new receiver may follow."""
        ...

    def close(self) -> None:
        """Frees the sender's resources. Idempotent."""
        ...


@runtime_checkable
class Pending(Protocol):
    """A payload under way, at its consumer."""

    def add(self, piece: object) -> None:
        """Adds the next piece."""
        ...

    def poll(self) -> Received | None:
        """The payload once its pieces are there and the consumer may have it, None before. Raises OmniError for a
        payload that is lost."""
        ...

    def release(self, after: Event) -> None:
        """The consumer launches no more reads of the received payload. Its launched reads are complete once `after` is done. Only
        the first call has an effect."""
        ...

    def abort(self) -> None:
        """No consumer has launched or launches a read of the payload. Pieces that it lacks are discarded when they
        come. Idempotent; a no-op after `release`."""
        ...


@runtime_checkable
class Receiver(Protocol):
    """The consumer's end."""

    @property
    def busy(self) -> bool:
        """Whether `tick` has something to do, now or later: also while a received payload is not released."""
        ...

    def receive(self, piece: object) -> Pending:
        """The payload whose first piece this is."""
        ...

    def discard(self, piece: object) -> None:
        """Gives up a piece, the first or a later one, of a payload without a consumer, or after `receive` or `add` has failed for
        the payload."""
        ...

    def tick(self) -> None:
        """Continues the receiver's work: it copies payloads, and returns the memory of released ones to the sender. The engine
        calls it in every turn while `busy`."""
        ...

    def close(self) -> None:
        """Frees the receiver's resources. Idempotent."""
        ...


@runtime_checkable
class Connector(Protocol):
    """A way to move payloads between two stages. An engine has one object, which opens the ends of all its edges."""

    @property
    def reach(self) -> Reach: ...

    @property
    def raw_device_tensors(self) -> bool:
        """Whether device tensors are passed without a copy through the host. On the CPU it has no effect."""
        ...

    def serves(self, producer: torch.device, consumer: torch.device) -> bool:
        """Whether it can connect stages on these devices of one host."""
        ...

    def sender(self, end: EdgeEnd) -> Sender:
        """Opens the producer's end. Raises ConfigError if that is impossible here."""
        ...

    def receiver(self, end: EdgeEnd, address: object) -> Receiver:
        """Opens the consumer's end. address: of the sender. Raises ConfigError if that is impossible here."""
        ...
