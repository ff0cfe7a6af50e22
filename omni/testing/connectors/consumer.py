"""The consumer's ends of the checks' edges, in this process."""

import gc
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from omni.connector import Connector, Pending, Reach, Received, Receiver
from omni.device import Device, Event
from omni.errors import OmniError
from omni.payload import PageSlice
from omni.testing.connectors.messages import (
    CloseReceiver,
    Command,
    Do,
    Expect,
    OpenGate,
    OpenReceiver,
    PieceOf,
    State,
)
from omni.testing.connectors.promises import Gate, calling, require
from omni.testing.connectors.values import Meta, fetch

MOST_KEPT = 48
"""Maximum number of memories of ended payloads that a receiver may keep for reuse."""
_KEEP = (
    "give a piece once its copy is done, give Received.ready as the event after the last copy, and use no memory again "
    "before its payload is free (Ref.freed) or the event of Pending.release is done"
)


@dataclass
class _Reading:
    """A copy of all tensors to the host."""

    host: list[Tensor]
    end: Event


class _Taken:
    """A payload on its way to the consumer, or there.

    finished: released or aborted. wanted: reads that the check requested.
    """

    def __init__(self, expected: Expect) -> None:
        self.key = expected.key
        self.meta = expected.meta
        self.polls = expected.poll
        self.state = State(expected.meta.number)
        self.pending: Pending | None = None
        self.received: Received | None = None
        self.reading: _Reading | None = None
        self.wanted = 0
        self.finished = False

    @property
    def done(self) -> bool:
        """Whether there is nothing to do in a turn."""
        return self.finished and self.wanted == self.state.reads

    def of(self, promise: str) -> str:
        """The promise, with the payload."""
        return f"{promise} (payload {self.meta.number} of {len(self.meta.tensors)} tensors)"


class Consumer:
    """Takes the checks' commands.

    changed: states that the calling thread has not heard of. busy: whether a receiver is.
    """

    def __init__(self, connector: Connector, device: Device) -> None:
        self.receivers: dict[int, Receiver] = {}
        self.changed: dict[int, State] = {}
        self.taken: dict[int, _Taken] = {}
        self._connector = connector
        self._device = device
        self._stream = device.stream("check-consumer")
        self._gates: dict[int, Gate] = {}
        self._dropped: list[tuple[Gate, StorageWeakRef, int]] = []
        """Memory that launched phases may read until the gate opens, with the number of its payload."""
        self._ended: list[StorageWeakRef] = []
        """Memory of which the gate has opened."""

    @property
    def busy(self) -> bool:
        with calling("Receiver.busy"):
            return any(receiver.busy for receiver in self.receivers.values())

    def do(self, command: Command) -> None:
        match command:
            case OpenReceiver():
                with calling("Connector.receiver", opens=True):
                    end, address = command.edge.end(self._device), command.address.value
                    self.receivers[command.key] = self._connector.receiver(end, address)
            case Expect():
                self.taken[command.meta.number] = _Taken(command)
            case PieceOf():
                self._take(self.taken[command.number], command)
            case Do():
                self._do(self.taken[command.number], command)
            case OpenGate():
                self._gate(command.gate).open = True
            case CloseReceiver():
                self._close(command.key)
            case _:
                raise TypeError(type(command).__name__)

    def turn(self) -> None:
        """The engine's work in a turn: `tick` of receivers that are busy, `poll` of requested payloads."""
        for gate in self._gates.values():
            gate.rest()
        self._watch_dropped()
        for receiver in list(self.receivers.values()):
            with calling("Receiver.tick"):
                if receiver.busy:
                    receiver.tick()
        for taken in [each for each in self.taken.values() if each.pending is not None and not each.done]:
            if taken.polls and taken.received is None and not taken.finished:
                self._poll(taken)
            self._advance(taken)

    def _watch_dropped(self) -> None:
        self._ended += [memory for gate, memory, _ in self._dropped if gate.open]
        self._dropped = [each for each in self._dropped if not each[0].open]
        for _, memory, number in self._dropped:
            require(
                not memory.expired(),
                f"memory of a received payload is there until the event of Pending.release is done (payload {number}): "
                "keep a reference to it in the receiver, and drop it in Receiver.tick once the event is done",
            )

    def _take(self, taken: _Taken, command: PieceOf) -> None:
        piece: object = command.piece.value
        receiver = self.receivers.get(taken.key)
        if receiver is None:  # the check has closed it
            return
        if command.discard or taken.finished:
            with calling("Receiver.discard"):
                receiver.discard(piece)
        elif taken.pending is None:
            with calling("Receiver.receive"):
                taken.pending = receiver.receive(piece)
        else:
            with calling("Pending.add"):
                taken.pending.add(piece)

    def _do(self, taken: _Taken, command: Do) -> None:
        match command.action:
            case "poll":
                taken.polls = True
            case "read":
                taken.wanted += 1
            case "release":
                assert taken.pending is not None
                after: Event = (
                    self._gate(command.gate) if command.gate is not None else self._device.record(self._stream)
                )
                taken.finished = True
                with calling("Pending.release"):
                    taken.pending.release(after)
                if command.gate is None:  # else the check reads it until the gate opens
                    taken.received = None
            case "drop":
                assert taken.pending is not None
                assert taken.received is not None
                assert command.gate is not None
                gate, tensors = self._gate(command.gate), taken.received.payload.tensors.values()
                memory = [t.pages if isinstance(t, PageSlice) else t for t in tensors]
                self._dropped += [(gate, StorageWeakRef(t.untyped_storage()), taken.meta.number) for t in memory]
                pending, taken.finished = taken.pending, True
                taken.pending = taken.received = None
                with calling("Pending.release"):
                    pending.release(gate)
            case "abort":
                taken.finished = True
                if taken.pending is not None:
                    with calling("Pending.abort"):
                        taken.pending.abort()
            case _:
                raise ValueError(command.action)

    def _gate(self, number: int) -> Gate:
        return self._gates.setdefault(number, Gate())

    def _require_memory_dropped(self) -> None:
        """The memory of ended payloads is dropped, or used again. A pool counts as one memory."""
        if len(self._memory_kept()) > MOST_KEPT:
            gc.collect()  # the collector finds it in cycles of the receiver's objects; it takes as long as all else
        kept = self._memory_kept()
        self._ended.clear()
        require(
            len(kept) <= MOST_KEPT or self._connector.reach is Reach.PROCESS,
            f"memory of received payloads goes back once the event of Pending.release is done: {len(kept)} that are over "
            "are still there; drop it in Receiver.tick, and give True from Receiver.busy until then: the engine ticks "
            "no other receiver",
        )

    def _memory_kept(self) -> set[int]:
        """The memory of ended payloads, each once."""
        return {memory.cdata for memory in self._ended if not memory.expired()}

    def _close(self, key: int) -> None:
        self._require_memory_dropped()
        with calling("Receiver.close", opens=True):
            self.receivers[key].close()
            self.receivers[key].close()
        del self.receivers[key]
        for number in [number for number, each in self.taken.items() if each.key == key]:
            del self.taken[number]

    def _poll(self, taken: _Taken) -> None:
        assert taken.pending is not None
        with calling("Pending.poll"):
            try:
                taken.received = taken.pending.poll()
            except OmniError as error:
                taken.polls, taken.state.lost = False, str(error)
                self.changed[taken.meta.number] = taken.state
        if taken.received is not None:
            self._compare_kinds(taken, taken.received)
            taken.state.arrived = True
            self.changed[taken.meta.number] = taken.state

    def _compare_kinds(self, taken: _Taken, received: Received) -> None:
        payload = received.payload
        require(
            payload.meta == taken.meta, taken.of("each payload arrives with its own meta, the one it was sent with")
        )
        names = {each.name for each in taken.meta.tensors}
        require(set(payload.tensors) == names, taken.of("tensors keep their names"))
        for each in taken.meta.tensors:
            tensor = payload.tensors[each.name]
            require(tensor.dtype == each.torch_dtype, taken.of(f"tensor {each.name!r} keeps its dtype"))
            require(tuple(tensor.shape) == each.shape, taken.of(f"tensor {each.name!r} keeps its shape"))
            gathered = self._connector.reach is Reach.PROCESS or isinstance(tensor, Tensor)
            require(gathered, "beyond Reach.PROCESS page slices arrive as tensors")

    def _advance(self, taken: _Taken) -> None:
        """Launches a requested read once the payload is ready, and compares it at its end."""
        received, state = taken.received, taken.state
        if received is None:
            return
        if not state.ready and received.ready.done():
            state.ready = True
            self.changed[state.number] = state
        if taken.reading is not None and taken.reading.end.done():
            self._compare(taken, taken.reading)
            taken.reading = None
        if taken.wanted > state.reads and taken.reading is None and state.ready and _in_place(received):
            taken.reading = self._read(taken.meta, received)

    def _read(self, meta: Meta, received: Received) -> _Reading:
        host = []
        for each in meta.tensors:
            tensor = received.payload.tensors[each.name]
            nbytes = int(np.prod(each.shape, dtype=np.int64)) * each.torch_dtype.itemsize
            # Called on the type: on the object, `HostMemory` would count it as memory of the connector.
            host.append(type(self._device).host_tensor(self._device, (nbytes,), torch.uint8))
            self._device.launch(self._stream, fetch, host[-1], tensor)
        end = self._device.record(self._stream)
        for tensor in received.payload.tensors.values():
            if isinstance(tensor, PageSlice):
                tensor.gathered(end)
        return _Reading(host, end)

    def _compare(self, taken: _Taken, reading: _Reading) -> None:
        state = taken.state
        for index, each in enumerate(taken.meta.tensors):
            if self._device.host_observer is not None:
                self._device.host_observer.host_reads(reading.host[index])
            same = np.array_equal(reading.host[index].numpy(), taken.meta.expected(index))
            again = ", also when it is read late" if state.reads else ""
            kind = f"{each.dtype} {list(each.shape)}, {each.layout}"
            require(same, f"{taken.of(f'tensor {each.name!r} ({kind}) keeps its contents{again}')}: {_KEEP}")
        state.reads += 1
        self.changed[state.number] = state


def _in_place(received: Received) -> bool:
    return all(t.moved.done() for t in received.payload.tensors.values() if isinstance(t, PageSlice))
