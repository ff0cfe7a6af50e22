"""Messages between the calling thread and the other end. Both ends in one thread use the same structs."""

from typing import Any, cast

import msgspec

from omni.connector import EdgeEnd
from omni.device import Device
from omni.ipc import Typed
from omni.testing.connectors.values import Meta


def typed(value: object) -> Typed[Any]:
    """A piece or an address. In one thread it need not be a struct."""
    return Typed(cast(Any, value))


class StartEnd(msgspec.Struct, frozen=True, tag=True):
    """Starts the end of the other process. factory: `module:attribute`. device: the name of that end's device."""

    factory: str
    device: str
    threads: int


class EdgeOf(msgspec.Struct, frozen=True):
    """The fields of an `EdgeEnd` without its device."""

    name: str
    pool_bytes: int
    producer: str
    consumer: str

    def end(self, device: Device) -> EdgeEnd:
        return EdgeEnd(self.name, device, self.pool_bytes, self.producer, self.consumer)


class OpenReceiver(msgspec.Struct, frozen=True, tag=True):
    """key: of the edge."""

    key: int
    edge: EdgeOf
    address: Typed[msgspec.Struct]


class OpenSender(msgspec.Struct, frozen=True, tag=True):
    key: int
    edge: EdgeOf


class Expect(msgspec.Struct, frozen=True, tag=True):
    """A payload that will come. poll: whether its consumer asks for it from the start."""

    key: int
    meta: Meta
    poll: bool


class PieceOf(msgspec.Struct, frozen=True, tag=True):
    """number: of the payload. discard: no consumer needs the payload."""

    number: int
    piece: Typed[msgspec.Struct]
    discard: bool = False


class Do(msgspec.Struct, frozen=True, tag=True):
    """An action on a payload: `poll`, `read`, `abort`, `release` after the gate, if there is one, or `drop`: `release` by a
    consumer that keeps no reference to received payloads."""

    action: str
    number: int
    gate: int | None = None


class OpenGate(msgspec.Struct, frozen=True, tag=True):
    gate: int


class CloseReceiver(msgspec.Struct, frozen=True, tag=True):
    key: int


class SendPayload(msgspec.Struct, frozen=True, tag=True):
    """The other process sends a payload of its own. ready: False for one that never becomes ready."""

    key: int
    meta: Meta
    ready: bool


class Turns(msgspec.Struct, frozen=True, tag=True):
    """Asks for an `EndReport` with this `token` after some more turns."""

    token: int
    count: int


Command = StartEnd | OpenReceiver | OpenSender | Expect | PieceOf | Do | OpenGate | CloseReceiver | SendPayload | Turns


class Commands(msgspec.Struct, frozen=True, tag=True):
    each: list[Command]


class State(msgspec.Struct):
    """A payload at its consumer.

    reads: number of reads that had the right values. lost: the error of `Pending.poll`.
    """

    number: int
    arrived: bool = False
    ready: bool = False
    reads: int = 0
    lost: str = ""


class EndReport(msgspec.Struct, tag=True):
    """News of the other end; the first one says that it is there.

    broken: the text of an AssertionError. busy: a receiver is. pieces: of payloads
    that the other end sends.
    """

    states: list[State] = []
    busy: bool = False
    broken: str = ""
    token: int = 0
    addresses: dict[int, Typed[msgspec.Struct]] = {}
    pieces: list[PieceOf] = []
