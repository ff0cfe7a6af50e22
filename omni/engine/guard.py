"""The ends of an edge, as an engine calls them: any fault of a connector becomes an error that names its edge.

| calls that raise, or return invalid values | harm |
|---|---|
| `send`, `pieces`, `sent`, `receive`, `add`, `poll` | the request whose payload it is |
| `tick`, `busy`, `released`, `freed`, `peer_lost` | the requests of the edge: its memory is in an unknown state |
| `Pending.release`, `discard`, both `abort` | the same: the next payloads would wait for the memory of this one |

Between two engines a payload's message is encoded and decoded as a trial before it is sent, since the memory of a lost piece is
never freed.

After a fault of the last two kinds the engine calls the ends only to release payloads and to close. It closes the consumer's stage
as after a fault of its worker. Nothing reads the payloads of the edge then, so that their producer gets their memory back
(`EdgeGuard.free`).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NoReturn, TypeVar

import msgspec
from torch import Tensor

from omni.connector import Connector, EdgeEnd, Pending, Received, Receiver, Ref, Sender
from omni.device import Event
from omni.errors import (
    OmniError,
    ReturnedError,
    StageError,
    as_omni_error,
    error_text,
    errors_as,
    fault_of,
    plugin_error,
    printable_error,
    type_of,
)
from omni.ipc import Codec, Typed
from omni.payload import PageSlice, Payload
from omni.pipeline import Edge
from omni.plugin.locate import given
from omni.utils.interrupts import is_interrupt
from omni.utils.origin import with_origin

ReturnedT = TypeVar("ReturnedT")

# Classes that passed the check: `isinstance` with a runtime protocol takes microseconds, for every payload.
_refs: set[type] = set()
_pendings: set[type] = set()
_events: set[type] = set()
_tensors: set[type] = set()


class _Message(msgspec.Struct, frozen=True, array_like=True):
    meta: Typed[msgspec.Struct]


class EdgeGuard:
    """The state that both ends of an edge share, in one engine.

    remote: whether the consumer is in another engine, so that pieces are structs. free: whether nothing reads the
    payloads that were sent, in any state of their refs.
    """

    def __init__(self, edge: Edge, *, remote: bool = False) -> None:
        self.edge = edge
        self.remote = remote
        self.free = False
        self.fault: OmniError | None = None
        """The first fault after which the state of the ends is unknown."""
        self.reported = False
        self._codec: Codec[_Message] = Codec(_Message, inline_bytes=None)

    def fail(self, doing: str, error: BaseException, code: object) -> NoReturn:
        """Raises an error of a call as an error of omni. code: the called function."""
        if is_interrupt(error):
            raise error
        raise as_omni_error(self.edge.name, doing, error, code) from printable_error(error)

    def break_off(self, doing: str, error: BaseException, code: object) -> None:
        """The state of the ends is unknown."""
        if is_interrupt(error):
            raise error
        self.fault = self.fault or as_omni_error(self.edge.name, doing, error, code)

    def check_message(self, doing: str, meta: msgspec.Struct) -> None:
        """Raises StageError for a payload's message that cannot pass to the consumer's engine."""
        try:
            self._codec.decode(*self._codec.encode(_Message(Typed(meta))))
        except Exception as error:
            problem = (
                f"its {type(meta).__name__} cannot be sent to another process: {error_text(error)}; correct its fields"
            )
            raise StageError(self.edge.name, doing, with_origin(problem, code=type(meta))) from error

    def check(self, doing: str) -> None:
        """Raises StageError after a fault."""
        if self.fault is not None:
            problem = f"its connector has failed, {problem_of(self.fault)}; open the model again"
            raise StageError(self.edge.name, doing, problem)


class GuardedRef:
    """Wraps a `Ref`: its errors become errors of the edge."""

    __slots__ = ("_guard", "_ref")

    def __init__(self, guard: EdgeGuard, ref: Ref) -> None:
        self._guard = guard
        self._ref = ref

    @property
    def released(self) -> bool:
        if self._guard.free:
            return True
        try:
            return self._ref.released
        except BaseException as error:
            self._guard.break_off("asking whether a payload is released", error, type(self._ref))
            return False

    @property
    def freed(self) -> bool:
        if self._guard.free:
            return True
        try:
            return self._ref.freed
        except BaseException as error:
            self._guard.break_off("asking whether a payload is free", error, type(self._ref))
            return False

    @property
    def sent(self) -> bool:
        try:
            return self._ref.sent
        except BaseException as error:
            self._guard.fail("sending a payload", error, type(self._ref))

    def pieces(self) -> Sequence[object]:
        try:
            return self._pieces()
        except BaseException as error:
            self._guard.fail("sending a payload", error, self._ref.pieces)

    def abort(self, reason: str) -> None:
        doing = "giving up a payload"
        try:
            self._ref.abort(reason)
        except BaseException as error:
            if not self.released:  # the producer would wait for its memory for ever
                self._guard.break_off(doing, error, self._ref.abort)
            self._guard.fail(doing, error, self._ref.abort)

    def _pieces(self) -> Sequence[object]:
        returned: object = self._ref.pieces()
        if type(returned) is tuple and not self._guard.remote:
            return returned
        if not isinstance(returned, Sequence) or isinstance(returned, str | bytes):
            problem = f"pieces returned {type_of(returned)}: return a sequence, often an empty one"
            raise ReturnedError(problem, self._ref.pieces)
        pieces = tuple(returned)  # here, since a sequence of a plugin may raise
        if self._guard.remote:
            for piece in pieces:
                if not isinstance(piece, msgspec.Struct):
                    problem = f"pieces returned {type_of(piece)} in its sequence"
                    remedy = "return msgspec.Structs, which another process can receive"
                    raise ReturnedError(f"{problem}: {remedy}", self._ref.pieces)
        return pieces


class GuardedSender:
    """Wraps a `Sender`: its errors become errors of the edge."""

    def __init__(self, guard: EdgeGuard, sender: Sender) -> None:
        self.guard = guard
        self._sender = sender

    @classmethod
    def open(cls, guard: EdgeGuard, connector: Connector, end: EdgeEnd) -> "GuardedSender":
        """Raises PluginError if the connector fails, and ConfigError if it refuses."""
        with _setup(guard.edge, "opening the sender", connector.sender):
            sender = _returned(connector.sender(end), Sender, "sender", connector.sender)  # type: ignore[type-abstract]
        opened = cls(guard, sender)
        _ = opened.address
        return opened

    @property
    def address(self) -> object:
        """Raises PluginError for one that the consumer's engine cannot receive."""
        with _setup(self.guard.edge, "asking for the address of the sender", type(self._sender)):
            address: object = self._sender.address
            if self.guard.remote and not isinstance(address, msgspec.Struct):
                problem = f"address is {type_of(address)}, which the consumer's process cannot receive"
                raise ReturnedError(f"{problem}: give a msgspec.Struct", type(self._sender))
        return address

    def send(self, payload: Payload, ready: Event) -> Ref:
        doing = "sending a payload"
        self.guard.check(doing)
        if self.guard.remote:
            self.guard.check_message(doing, payload.meta)
        try:
            ref = self._sender.send(payload, ready)
            if type(ref) not in _refs:
                _check_flags(_returned(ref, Ref, "send", self._sender.send))  # type: ignore[type-abstract]
                _refs.add(type(ref))
        except BaseException as error:
            self.guard.fail(doing, error, self._sender.send)
        return GuardedRef(self.guard, ref)

    def peer_lost(self) -> None:
        try:
            self._sender.peer_lost()
        except BaseException as error:
            self.guard.break_off("giving up the payloads of a receiver that has ended", error, self._sender.peer_lost)

    def close(self) -> None:
        with _setup(self.guard.edge, "closing the sender", self._sender.close):
            self._sender.close()


class GuardedPending:
    """Wraps a `Pending`: its errors become errors of the edge."""

    __slots__ = ("_guard", "_pending")

    def __init__(self, guard: EdgeGuard, pending: Pending) -> None:
        self._guard = guard
        self._pending = pending

    def add(self, piece: object) -> None:
        try:
            self._pending.add(piece)
        except BaseException as error:
            self._guard.fail("receiving a payload", error, self._pending.add)

    def poll(self) -> Received | None:
        try:
            received: object = self._pending.poll()
            return _received(received, self._pending.poll) if received is not None else None
        except BaseException as error:
            self._guard.fail("receiving a payload", error, self._pending.poll)

    def release(self, after: Event) -> None:
        try:
            self._pending.release(after)
        except BaseException as error:
            self._guard.break_off("releasing a payload", error, self._pending.release)

    def abort(self) -> None:
        try:
            self._pending.abort()
        except BaseException as error:
            self._guard.break_off("giving up a payload", error, self._pending.abort)


class GuardedReceiver:
    """Wraps a `Receiver`: its errors become errors of the edge."""

    def __init__(self, guard: EdgeGuard, receiver: Receiver) -> None:
        self.guard = guard
        self._receiver = receiver

    @classmethod
    def open(cls, guard: EdgeGuard, connector: Connector, end: EdgeEnd, address: object) -> "GuardedReceiver":
        """Raises PluginError if the connector fails, and ConfigError if it refuses."""
        with _setup(guard.edge, "opening the receiver", connector.receiver):
            made: object = connector.receiver(end, address)
            receiver = _returned(made, Receiver, "receiver", connector.receiver)  # type: ignore[type-abstract]
            _check_bool(receiver.busy, f"{type(receiver).__name__}.busy", type(receiver))
        return cls(guard, receiver)

    @property
    def busy(self) -> bool:
        """Any thread may ask."""
        if self.guard.fault is not None:
            return False
        try:
            return self._receiver.busy
        except BaseException as error:
            self.guard.break_off("asking whether its receiver is busy", error, type(self._receiver))
            return False

    def receive(self, piece: object) -> Pending:
        doing, receiver = "receiving a payload", self._receiver
        self.guard.check(doing)
        try:
            pending = receiver.receive(piece)
            if type(pending) not in _pendings:
                _returned(pending, Pending, "receive", receiver.receive)  # type: ignore[type-abstract]
                _pendings.add(type(pending))
        except BaseException as error:
            self.guard.fail(doing, error, receiver.receive)
        return GuardedPending(self.guard, pending)

    def discard(self, piece: object) -> None:
        try:
            self._receiver.discard(piece)
        except BaseException as error:
            self.guard.break_off("discarding a payload", error, self._receiver.discard)

    def tick(self) -> None:
        if self.guard.fault is not None:
            return
        try:
            self._receiver.tick()
        except BaseException as error:
            self.guard.break_off("ticking its receiver", error, self._receiver.tick)

    def close(self) -> None:
        with _setup(self.guard.edge, "closing the receiver", self._receiver.close):
            self._receiver.close()


def problem_of(fault: OmniError) -> str:
    """An earlier fault, as part of a later error's message."""
    return fault.problem if isinstance(fault, StageError) else str(fault)


def _setup(edge: Edge, doing: str, code: object) -> AbstractContextManager[None]:
    """Opens or closes an end. Exceptions of other types than omni's become PluginErrors. code: the called function."""

    def failed(error: BaseException) -> OmniError:
        problem = f"{doing} of edge {edge.name!r} failed: {fault_of(error, code)}"
        remedy = "correct the connector, or choose another one for the edge"
        return plugin_error(f"{edge.setting}.connector", problem, remedy)

    return errors_as(failed)


def _returned(value: object, kind: type[ReturnedT], method: str, code: object) -> ReturnedT:
    """The result of a method. Raises ReturnedError if it is no `kind`."""
    if isinstance(value, kind):
        return value
    raise ReturnedError(f"{method} returned {given(value, kind)}: return a {kind.__name__}", code)


def _check_flags(ref: Ref) -> None:
    for name, flag in (("released", ref.released), ("freed", ref.freed), ("sent", ref.sent)):
        _check_bool(flag, f"{type(ref).__name__}.{name}", type(ref))


def _check_bool(flag: object, name: str, code: object) -> None:
    if not isinstance(flag, bool):
        raise ReturnedError(f"{name} is {type_of(flag)}: make it a property that gives True or False", code)


def _received(received: object, code: object) -> Received:
    """The result of `poll`. Raises ReturnedError if the consumer could not use it."""
    if not isinstance(received, Received):
        problem = f"poll returned {type_of(received)}: return a Received, or None before it has arrived"
        raise ReturnedError(problem, code)
    payload: object = received.payload
    if not isinstance(payload, Payload):
        raise ReturnedError(f"poll returned a Received with {type_of(payload)} as payload: give a Payload", code)
    if type(received.ready) not in _events:
        _check_ready(received.ready, code)
    meta: object = payload.meta
    if not isinstance(meta, msgspec.Struct):
        problem = f"poll returned a payload with {type_of(meta)} as meta: give the struct that was sent"
        raise ReturnedError(problem, code)
    for name, tensor in payload.tensors.items():
        if type(tensor) not in _tensors:
            _check_tensor(name, tensor, code)
    return received


def _check_ready(ready: object, code: object) -> None:
    if not isinstance(ready, Event):
        raise ReturnedError(f"poll returned a Received with {type_of(ready)} as ready: give an Event", code)
    _events.add(type(ready))


def _check_tensor(name: str, tensor: object, code: object) -> None:
    if not isinstance(tensor, Tensor | PageSlice):
        raise ReturnedError(f"poll returned a payload whose tensor {name!r} is {type_of(tensor)}: give a Tensor", code)
    _tensors.add(type(tensor))
