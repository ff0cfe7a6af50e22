"""An edge into host memory, and a producer that reuses its pages as soon as the contract lets it."""

from collections import deque
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.connector import Pending, Received, Ref
from omni.device import COMPLETED, Device, Event
from omni.engine.host import HostReceiver
from omni.payload import PageSlice, Payload
from omni.testing import SimulatedDevice
from omni.testing.simulation.late import QueuedDevice
from omni_local.connector import LocalReceiver, LocalSender
from tests.support.received import tensors_of

BLOCK = 4
REUSED = -1.0
"""What stands in memory that its producer reused."""


class Numbered(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@dataclass(eq=False)
class Sent:
    """A payload under way. values: those that the consumer must find. received: whether it has arrived. finished: released or given
    up.

    places: memory that holds it, each with the events that must be done before it may be reused.
    """

    number: int
    payload: Payload
    values: dict[str, NDArray[np.float32]]
    ref: Ref
    pending: Pending
    received: Received | None = None
    finished: bool = False
    places: list[tuple[Tensor, tuple[Event, ...]]] = field(default_factory=list)

    @property
    def readable(self) -> bool:
        return self.received is not None and self.received.ready.done()

    def read(self) -> dict[str, NDArray[np.float32]]:
        assert self.received is not None
        return {name: tensor.numpy().copy() for name, tensor in tensors_of(self.received.payload).items()}


class HostBench:
    """Payloads have page rows `hidden` and a plain tensor `plain`; each has memory of its own until it is reused."""

    def __init__(self, device: Device, width: int = 8, **sizes: int) -> None:
        self.device, self.width = device, width
        self.sender = LocalSender()
        self.receiver = HostReceiver(LocalReceiver(), device, "writer->host_reader", **sizes)
        self.producer = device.stream("writer")
        self.consumer = device.stream("host_reader")
        self.under_way: deque[Sent] = deque()
        self.sent: list[Sent] = []

    def send(self, rows: int, *, scattered: bool = False, write: bool = True) -> Sent:
        """A payload of so many page rows. write: else the device never gets to it."""
        number = len(self.sent)
        blocks = -(-rows // BLOCK) + 1
        pages = torch.full((blocks, BLOCK, self.width), REUSED)
        plain = torch.full((3,), REUSED)
        slots = np.arange(1, rows + 1)
        if scattered:
            slots = np.random.default_rng(number).permutation(blocks * BLOCK)[:rows]
        hidden_nW = (np.arange(rows * self.width).reshape(rows, self.width) + 10_000 * (number + 1)).astype(np.float32)
        values = {"hidden": hidden_nW, "plain": np.arange(3, dtype=np.float32) + number}
        if write:
            self.device.launch(self.producer, write_pages, pages, torch.from_numpy(slots), torch.from_numpy(hidden_nW))
            self.device.launch(self.producer, write_plain, plain, torch.from_numpy(values["plain"]))
        ready = self.device.record(self.producer) if write else Never()
        payload = Payload(Numbered(number=number), {"hidden": PageSlice(pages, slots), "plain": plain})
        ref = self.sender.send(payload, ready)
        (piece,) = ref.pieces()
        sent = Sent(number, payload, values, ref, self.receiver.receive(piece))
        self.sent.append(sent)
        self.under_way.append(sent)
        return sent

    def poll(self) -> None:
        """As routes do, one for each payload here."""
        for sent in list(self.under_way):
            sent.received = sent.pending.poll()
            if sent.received is not None:
                assert sent.received.payload.meta == Numbered(number=sent.number)
                self.under_way.remove(sent)

    def step(self) -> None:
        """Runs the device's queued launches, then polls."""
        if isinstance(self.device, QueuedDevice):
            self.device.run()
        self.poll()

    def settle(self) -> None:
        """Steps until no payload is under way."""
        while self.under_way:
            self.step()

    def release(self, sent: Sent, after: Event = COMPLETED) -> None:
        sent.finished = True
        sent.pending.release(after)

    def abort(self, sent: Sent) -> None:
        sent.finished = True
        sent.pending.abort()
        if sent in self.under_way:
            self.under_way.remove(sent)

    def move(self, sent: Sent) -> None:
        """The producer gives the rows another place, if it still may."""
        part = sent.payload.tensors["hidden"]
        assert isinstance(part, PageSlice)
        if sent.ref.released:
            return
        place = torch.full((1, part.slots.size, self.width), REUSED)
        old = part.pages
        self.device.launch(self.producer, move_rows, old, torch.from_numpy(part.slots), place)
        moved = self.device.record(self.producer)
        readers = part.relocate(place, np.arange(part.slots.size), moved)
        sent.places.append((old, (moved, readers)))

    def reuse(self) -> None:
        """Overwrites all memory that is the producer's again."""
        for sent in self.sent:
            for memory, events in sent.places:
                if all(event.done() for event in events):
                    memory.fill_(REUSED)
            if sent.ref.freed:
                part, plain = sent.payload.tensors["hidden"], sent.payload.tensors["plain"]
                assert isinstance(part, PageSlice)
                assert isinstance(plain, Tensor)
                part.pages.fill_(REUSED)
                plain.fill_(REUSED)

    def expect(self, sent: Sent) -> None:
        """The arrived values are those that were sent."""
        assert sent.readable
        for name, values in sent.read().items():
            np.testing.assert_array_equal(values, sent.values[name], f"{name} of {sent.number}")


class Never:
    """An event of work that hangs."""

    def done(self) -> bool:
        return False


def write_pages(pages: Tensor, slots_n: Tensor, hidden_nW: Tensor) -> None:
    pages.flatten(0, 1).index_copy_(0, slots_n, hidden_nW)


def write_plain(plain: Tensor, values: Tensor) -> None:
    plain.copy_(values)


def move_rows(pages: Tensor, slots_n: Tensor, place: Tensor) -> None:
    place[0].copy_(pages.flatten(0, 1).index_select(0, slots_n))


# Payload over an edge into host memory: its producer moves it and reuses its memory, its consumer has work of its own.


def play(device: SimulatedDevice, seed: int) -> None:
    """Until all of it is read. Raises AssertionError for a wrong row. seed: the device's."""
    bench = HostBench(device, slots=seed % 3, slot_bytes=256, piece_bytes=64)
    assert device.schedule is not None
    chance = device.schedule.random.random
    left = [1, 7, 2, 12, 3] * 3
    while left or any(not sent.finished for sent in bench.sent):
        if left and len(bench.under_way) < 3:
            bench.send(left.pop(), scattered=chance() < 0.5)
            device.stall("host_reader", 0.01 * chance())
        bench.poll()
        for sent in bench.sent:
            if sent.readable and not sent.finished:
                bench.expect(sent)
                if chance() < 0.5:
                    device.launch(bench.consumer, expect_late, bench, sent)
                    bench.release(sent, device.record(bench.consumer))
                else:
                    bench.release(sent, COMPLETED)
            elif chance() < 0.3:
                bench.move(sent)
        bench.reuse()
        device.host_step()
    device.synchronize()


def expect_late(bench: HostBench, sent: Sent) -> None:
    """The consumer's own work reads the payload once more."""
    bench.expect(sent)
