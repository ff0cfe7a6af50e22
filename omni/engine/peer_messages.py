"""The messages of routes between two engines.

| message | from | to | call |
|---|---|---|---|
| `Hello` | both | both | opens the receivers of the other's senders |
| `PieceOut`, `EndOut`, `GiveUpOut` | the producer's engine | the consumer's | `RouteConsumer` |
| `AcquiredOut`, `LeaveOut` | the consumer's engine | the producer's | `RouteProducer` |
| `EdgeFault` | the producer's engine | the consumer's | closes the consumer, since the sender has failed |
| `EdgeClosed` | the consumer's engine | the producer's | `EdgeGuard.free`: the consumer is closed, since an end has failed |

Messages of one engine arrive in order. A request reaches each engine by itself, so a message for it can come before it
does (it is kept) or after it has left (a piece is discarded). `EngineRequest.number` separates the two: requests reach
every engine in the order of their numbers.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from omni.ipc import Typed


class Hello(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first message of each side. addresses: of its senders, by edge."""

    addresses: dict[str, Typed[msgspec.Struct]]


class PieceOut(msgspec.Struct, frozen=True, tag=True, array_like=True):
    request_id: str
    number: int
    edge: str
    index: int
    piece: Typed[msgspec.Struct]


class EndOut(msgspec.Struct, frozen=True, tag=True, array_like=True):
    request_id: str
    number: int
    edge: str
    payloads: int
    reason: str


class GiveUpOut(msgspec.Struct, frozen=True, tag=True, array_like=True):
    request_id: str
    number: int
    edge: str


class AcquiredOut(msgspec.Struct, frozen=True, tag=True, array_like=True):
    request_id: str
    edge: str


class LeaveOut(msgspec.Struct, frozen=True, tag=True, array_like=True):
    request_id: str
    edge: str


class EdgeFault(msgspec.Struct, frozen=True, tag=True, array_like=True):
    edge: str
    problem: str


class EdgeClosed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    edge: str
    problem: str


class LostPiece(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Instead of a `PieceOut` that cannot be decoded. Its link makes it."""

    request_id: str
    number: int
    edge: str
    problem: str


ToConsumer = PieceOut | EndOut | GiveUpOut | LostPiece
ToProducer = AcquiredOut | LeaveOut
PeerMessage = Hello | ToConsumer | ToProducer | EdgeFault | EdgeClosed


def lost_piece(message: bytes, error: Exception) -> LostPiece | None:
    """The rest of a message that cannot be decoded, if it is a piece."""
    raw = msgspec.msgpack.decode(message, ext_hook=lambda code, data: None)
    if raw[0] != PieceOut.__name__:
        return None
    _, request_id, number, edge, *_ = raw
    return LostPiece(request_id, number, edge, f"{error}; correct its fields")


class LinkClosed(Exception):
    """The other engine has ended, or the connection to it."""


class Link(Protocol):
    """The messages to and from another engine. No call waits."""

    def send(self, message: PeerMessage) -> None:
        """Adds a message; `flush` sends it. A no-op after `close`. Raises TypeError for one that cannot be sent."""
        ...

    def flush(self) -> None: ...

    @property
    def unsent(self) -> bool:
        """Whether `flush` could not send everything yet."""
        ...

    def take(self) -> Sequence[PeerMessage]:
        """The messages that have arrived, in order; a `LostPiece` for a piece that cannot be decoded. Raises LinkClosed
        after the last one."""
        ...

    def close(self) -> None: ...
