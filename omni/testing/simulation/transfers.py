"""Tensors that one simulated rank sends to another.

Transfers are those of CUDA or those of the CPU. On CUDA a transfer occupies its stream: a sent tensor is read, and a received one
written, until the stream goes on; a posted one is read beside the stream, which goes on at once. On the CPU `send` and `post` copy,
and received tensors come while the stream goes on; a phase that reads it calls `PendingReceive.wait`. Received memory holds garbage
until its content has come.
"""

import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from omni.parallel import PendingReceive
from omni.parallel.communicator import ARRIVED
from omni.testing.simulation.checker import Running
from omni.testing.simulation.device import SimulatedDevice
from omni.testing.simulation.lanes import DelayedLane, Delays
from omni.testing.simulation.shared_time import SharedTime
from omni.testing.simulation.stream import Clock, QueuedPhase, SimulatedEvent, SimulatedStream, advance, join


@dataclass(slots=True)
class _Sent:
    """A sent tensor. at: the time in seconds. clock: the actions before. content: None as long as the memory is not read."""

    at: float
    clock: Clock
    content: Tensor | None = None
    taken_at: float = 0.0


@dataclass(slots=True)
class _Received:
    """x: the destination, written as by `writer`."""

    device: SimulatedDevice
    x: Tensor
    writer: Running
    event: SimulatedEvent
    at: float

    def done(self) -> bool:
        device, caller = self.device, sys._getframe(1)
        return self.event.reached or any(
            device.leaves_out(name, self.event.stream) for name in device.waits.names(caller)
        )

    def arrived(self) -> bool:
        return self.done()

    def wait(self) -> None:
        running = self.device.running
        phase = running.launched.phase
        if self.device.leaves_out(f"{phase.__module__}.{phase.__qualname__}", running.stream):
            return
        if not self.event.reached:
            raise AssertionError(
                f"{phase.__name__} waits for a tensor that has not come: launch it after `wait_remote`"
            )
        join(running.launched.clock, self.event.clock)
        join(running.stream.come, self.event.clock)

    def spoil(self) -> None:
        """Called in the phase that begins the transfer."""
        with self.device.attributed(self.writer):
            spoil(self.x)

    def fill(self, content: Tensor) -> None:
        with self.device.recorded(self.writer):
            self.x.copy_(content)


def spoil(x: Tensor) -> None:
    x.fill_(torch.nan if x.dtype.is_floating_point else torch.iinfo(x.dtype).max)


def transfer() -> None:
    """The phase that accesses of transfers beside streams are reported as."""


def _transfer_of(agent: SimulatedStream, running: Running) -> Running:
    """A transfer of its own, beside the stream of the phase that begins it. agent: that makes it."""
    begun = running.launched
    agent.tick += 1
    clock = list(begun.clock)
    join(clock, agent.clock)
    advance(clock, agent.agent, agent.tick)
    agent.clock = clock
    launched = QueuedPhase(
        phase=transfer,
        buffers=(),
        number=begun.number,
        tick=agent.tick,
        clock=list(clock),
        inference=begun.inference,
        at=begun.at,
        due_after=0.0,
        images=(),
    )
    return Running(agent, launched)


class TransferLink:
    """The tensors that one rank sends to another one on a communicator, in order."""

    def __init__(self, name: str, shared_time: SharedTime, blocks: bool) -> None:
        """blocks: whether a transfer occupies its stream."""
        assert shared_time.schedule is not None
        self._shared_time, self._blocks = shared_time, blocks
        self._delays = Delays(shared_time.schedule)
        self._taking, self._arriving = (
            DelayedLane(f"{name} taking", shared_time),
            DelayedLane(f"{name} arriving", shared_time),
        )
        self._sent: list[_Sent] = []
        self._received: list[_Received] = []
        self._reader: SimulatedStream | None = None
        self._writer: SimulatedStream | None = None

    def send(self, device: SimulatedDevice, x: Tensor, posted: bool = False) -> None:
        running, number = device.running, len(self._sent)
        if posted and self._blocks:
            if self._reader is None:
                self._reader = device.beside(running.stream, "post")
            running = _transfer_of(self._reader, running)
        sent = _Sent(self._shared_time.now, list(running.launched.clock))
        self._sent.append(sent)
        if self._blocks:
            self._send_later(device, x, running, sent, number, held=not posted)
        else:
            sent.content, sent.taken_at = x.clone(), sent.at
        delay = self._delays.draw()

        def at() -> float | None:
            if sent.content is None or number >= len(self._received):
                return None
            return max(sent.taken_at, self._received[number].at) + delay

        self._arriving.add(at, lambda: self._arrive(number))

    def _send_later(
        self, device: SimulatedDevice, x: Tensor, running: Running, sent: _Sent, number: int, held: bool
    ) -> None:
        """held: whether the stream goes on only after the tensor is read."""
        delay, meets = self._delays.draw(), self._delays.chance()
        taken = device.event(running.stream, list(sent.clock))
        if held:
            device.hold(taken)
        reader = Running(running.stream, running.launched)

        def at() -> float | None:
            if not meets:
                return sent.at + delay
            return max(sent.at, self._received[number].at) + delay if number < len(self._received) else None

        def take() -> None:
            with device.recorded(reader):
                sent.content = x.clone()
            taken.reached, taken.reached_at = True, self._shared_time.now
            sent.taken_at = self._shared_time.now

        self._taking.add(at, take)

    def receive(self, device: SimulatedDevice, x: Tensor) -> PendingReceive:
        running = device.running
        if self._blocks:
            writer = Running(running.stream, running.launched)
        else:
            if self._writer is None:
                self._writer = device.beside(running.stream, "transfer")
            writer = _transfer_of(self._writer, running)
        event = device.event(running.stream, list(writer.launched.clock))
        received = _Received(device, x, writer, event, self._shared_time.now)
        self._received.append(received)
        received.spoil()
        if not self._blocks:
            return received
        device.hold(event)
        return ARRIVED

    def _arrive(self, number: int) -> None:
        sent, received = self._sent[number], self._received[number]
        content, x = sent.content, received.x
        assert content is not None
        if (content.shape, content.dtype) != (x.shape, x.dtype):
            raise AssertionError(f"received {content.dtype} {list(content.shape)} for {x.dtype} {list(x.shape)}")
        received.fill(content)
        join(received.event.clock, sent.clock)
        received.event.reached, received.event.reached_at = True, self._shared_time.now
        sent.content = None
