"""Transfers between ranks, and the memory that they use in turn."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

from torch import Tensor

from omni.device import COMPLETED, Device, Event, Stream
from omni.parallel import Communicator, PendingReceive


class TransferEvent:
    """Done once all tensors of a transfer have arrived."""

    def __init__(self) -> None:
        self._each: Sequence[PendingReceive] | None = None

    def expect(self, each: Sequence[PendingReceive]) -> None:
        self._each = each

    def done(self) -> bool:
        return self._each is not None and all(arrival.done() for arrival in self._each)

    def arrived(self) -> bool:
        """See `PendingReceive.arrived`."""
        return self._each is not None and all(arrival.arrived() for arrival in self._each)

    def wait(self) -> None:
        """Called by the phase that reads them."""
        assert self._each is not None, "the transfer is not launched"
        for arrival in self._each:
            arrival.wait()


def receive_tensors(communicator: Communicator, source: int, tensors: Sequence[Tensor], arrived: TransferEvent) -> None:
    arrived.expect([communicator.receive(tensor, source) for tensor in tensors])


def send_tensors(communicator: Communicator, to: Sequence[int], tensors: Sequence[Tensor]) -> None:
    for rank in to:
        for tensor in tensors:
            communicator.send(tensor, rank)


def post_tensors(communicator: Communicator, to: Sequence[int], tensors: Sequence[Tensor]) -> None:
    for rank in to:
        for tensor in tensors:
            communicator.post(tensor, rank)


@dataclass(slots=True)
class Slot:
    """tensors: of the largest step. filled, free: after the work that filled it last, and that emptied it."""

    tensors: tuple[Tensor, ...]
    filled: Event = COMPLETED
    free: Event = COMPLETED


class SlotRing:
    """Slots that a stream fills and another one empties, in turn."""

    def __init__(self, device: Device, slots: Sequence[tuple[Tensor, ...]], filling: Stream, emptying: Stream) -> None:
        self._device = device
        self.tensors = [tensor for slot in slots for tensor in slot]
        self._slots: Iterator[Slot] = cycle([Slot(tensors) for tensors in slots])
        self._filling, self._emptying = filling, emptying

    def fill(self, launch: Callable[[tuple[Tensor, ...]], None]) -> Slot:
        """The next slot, filled by the work that `launch` enqueues."""
        slot = next(self._slots)
        self._device.wait(self._filling, slot.free)
        launch(slot.tensors)
        slot.filled = self._device.record(self._filling)
        return slot

    def drain(self, slot: Slot, launch: Callable[[tuple[Tensor, ...]], None]) -> None:
        """Frees a filled slot after the work that `launch` enqueues."""
        self._device.wait(self._emptying, slot.filled)
        launch(slot.tensors)
        slot.free = self._device.record(self._emptying)
