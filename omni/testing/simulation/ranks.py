"""The ranks of a stage in one thread: each has a simulated device of its own, and all devices share one time. What passes between
ranks is late, as a seed decides, and its accesses to memory are checked.

Transfers are those of CUDA or those of the CPU. On CUDA a transfer occupies its stream: a sent tensor is read, and a received one
written, until the stream goes on. On the CPU `send` copies, and what is received comes while the stream goes on; a phase that reads
it calls `PendingReceive.wait`. Received memory holds garbage until its content has come.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from omni.parallel import EqualRanks, PendingReceive, PipelineRank, RankLayout, Ranks
from omni.parallel.silent import THERE
from omni.testing.simulation.checker import Running
from omni.testing.simulation.device import SimulatedDevice
from omni.testing.simulation.shared_time import Schedule, SharedTime
from omni.testing.simulation.simulation import Simulation
from omni.testing.simulation.stream import Clock, QueuedPhase, SimulatedEvent, SimulatedStream, advance, join

_AT_ONCE, _VERY_LATE = 0.3, 0.05
"""Shares of transfers."""
_MOST_ROUNDS = 24
"""Rounds that a rank may be behind the others."""


class _Delays:
    """pace: mean seconds of what takes neither no time nor very long."""

    def __init__(self, schedule: Schedule) -> None:
        self._random = schedule.random
        self._pace = schedule.pace()

    def draw(self) -> float:
        kind = self._random.random()
        if kind < _AT_ONCE:
            return 0.0
        if kind > 1 - _VERY_LATE:
            return float(10 ** self._random.uniform(-3, 0))
        return self._random.expovariate(1 / self._pace)

    def chance(self) -> bool:
        return self._random.random() < 0.5


class _Lane:
    """Actions in order. Each runs at its time, and not before the ones ahead of it."""

    def __init__(self, name: str, shared_time: SharedTime) -> None:
        self._name, self._shared_time = name, shared_time
        self._actions: deque[tuple[Callable[[], float | None], Callable[[], None]]] = deque()
        self._free_at = 0.0
        shared_time.add(self)

    def add(self, at: Callable[[], float | None], act: Callable[[], None]) -> None:
        """at: seconds, None as long as the action is not possible."""
        self._actions.append((at, act))
        self._shared_time.moved()

    @property
    def can_run(self) -> bool:
        return bool(self._actions) and self._actions[0][0]() is not None

    @property
    def due(self) -> float:
        at = self._actions[0][0]()
        assert at is not None
        return max(at, self._free_at)

    def run(self) -> None:
        self._free_at = self.due
        _, act = self._actions.popleft()
        self._shared_time.done += 1
        self._shared_time.moved()
        self._shared_time.trace.append((self._name, "", self._shared_time.done))
        act()

    def __str__(self) -> str:
        return f"{self._name}: {len(self._actions)} pending" if self._actions else ""


@dataclass(slots=True)
class _Sent:
    """at: seconds. clock: what happened before. content: None as long as the memory is not read."""

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

    def wait(self) -> None:
        running = self.device.running
        phase = running.launched.phase
        if self.device.leaves_out(f"{phase.__module__}.{phase.__qualname__}", running.stream):
            return
        if not self.event.reached:
            raise AssertionError(
                f"{phase.__name__} waits for a tensor that has not come: launch it behind `wait_remote`"
            )
        join(running.launched.clock, self.event.clock)
        join(running.stream.come, self.event.clock)

    def spoil(self) -> None:
        """Called in the phase that begins the transfer."""
        with self.device.attributed(self.writer):
            _spoil(self.x)

    def fill(self, content: Tensor) -> None:
        with self.device.recorded(self.writer):
            self.x.copy_(content)


def _spoil(x: Tensor) -> None:
    x.fill_(torch.nan if x.dtype.is_floating_point else torch.iinfo(x.dtype).max)


def arrive() -> None:
    """The phase that accesses of transfers beside streams are reported as."""


class _Link:
    """What one rank sends to another one on a communicator, in order."""

    def __init__(self, name: str, shared_time: SharedTime, blocks: bool) -> None:
        """blocks: whether a transfer occupies its stream."""
        assert shared_time.schedule is not None
        self._shared_time, self._blocks = shared_time, blocks
        self._delays = _Delays(shared_time.schedule)
        self._taking, self._arriving = _Lane(f"{name} taking", shared_time), _Lane(f"{name} arriving", shared_time)
        self._sent: list[_Sent] = []
        self._received: list[_Received] = []
        self._writer: SimulatedStream | None = None

    def send(self, device: SimulatedDevice, x: Tensor) -> None:
        running, number = device.running, len(self._sent)
        sent = _Sent(self._shared_time.now, list(running.launched.clock))
        self._sent.append(sent)
        if self._blocks:
            self._send_later(device, x, running, sent, number)
        else:
            sent.content, sent.taken_at = x.clone(), sent.at
        delay = self._delays.draw()

        def at() -> float | None:
            if sent.content is None or number >= len(self._received):
                return None
            return max(sent.taken_at, self._received[number].at) + delay

        self._arriving.add(at, lambda: self._arrive(number))

    def _send_later(self, device: SimulatedDevice, x: Tensor, running: Running, sent: _Sent, number: int) -> None:
        delay, meets = self._delays.draw(), self._delays.chance()
        taken = device.event(running.stream, list(sent.clock))
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
        writer = Running(running.stream, running.launched) if self._blocks else self._transfer_of(device, running)
        event = device.event(running.stream, list(writer.launched.clock))
        received = _Received(device, x, writer, event, self._shared_time.now)
        self._received.append(received)
        received.spoil()
        if not self._blocks:
            return received
        device.hold(event)
        return THERE

    def _transfer_of(self, device: SimulatedDevice, running: Running) -> Running:
        """A transfer of its own, beside the stream of the phase that begins it."""
        if self._writer is None:
            self._writer = device.beside(running.stream, "transfer")
        writer, begun = self._writer, running.launched
        writer.tick += 1
        clock = list(begun.clock)
        join(clock, writer.clock)
        advance(clock, writer.agent, writer.tick)
        writer.clock = clock
        launched = QueuedPhase(
            phase=arrive,
            buffers=(),
            number=begun.number,
            tick=writer.tick,
            clock=list(clock),
            inference=begun.inference,
            at=begun.at,
            due_after=0.0,
            images=(),
        )
        return Running(writer, launched)

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


class _Collective:
    """given: by rank, the tensor and the phase. Tensors are read once all ranks have come."""

    def __init__(self, name: str, devices: Sequence[SimulatedDevice]) -> None:
        self.name = name
        self._devices = devices
        self._given: dict[int, tuple[Tensor, Running]] = {}
        self._kinds: set[str] = set()
        self._contents: list[Tensor] | None = None
        self.complete_at: float | None = None

    def give(self, rank: int, x: Tensor, kind: str) -> None:
        device = self._devices[rank]
        self._kinds.add(f"{kind} of {x.dtype} {list(x.shape)}")
        if len(self._kinds) > 1:
            raise AssertionError(f"{self.name}: the ranks are at different collectives: {', '.join(self._kinds)}")
        self._given[rank] = (x, device.running)
        if len(self._given) == len(self._devices):
            self.complete_at = device.now

    def contents(self) -> list[Tensor]:
        """By rank."""
        if self._contents is None:
            self._contents = []
            for rank, device in enumerate(self._devices):
                x, running = self._given[rank]
                with device.recorded(running):
                    self._contents.append(x.clone())
        return self._contents

    def clock(self) -> Clock:
        """What has happened before it at any rank."""
        clock: Clock = []
        for _, running in self._given.values():
            join(clock, running.launched.clock)
        return clock


class _Group:
    """Ranks that communicate. blocks: see `_Link`."""

    def __init__(self, name: str, devices: Sequence[SimulatedDevice], shared_time: SharedTime, blocks: bool) -> None:
        self.name = name
        self.devices = devices
        self.shared_time = shared_time
        assert shared_time.schedule is not None
        self.delays = _Delays(shared_time.schedule)
        self.in_place = self.delays.chance()
        """Whether sums are written over what is given; otherwise that is filled with garbage."""
        self.leaving = [_Lane(f"{name} leaving {rank}", shared_time) for rank in range(len(devices))]
        self.collectives: list[_Collective] = []
        self.links = {
            (source, to): _Link(f"{name} {source}->{to}", shared_time, blocks)
            for source in range(len(devices))
            for to in range(len(devices))
            if source != to
        }


class SimulatedCommunicator:
    """A `Communicator` of ranks on simulated devices."""

    def __init__(self, group: _Group, rank: int) -> None:
        self._group, self._rank = group, rank
        self._device = group.devices[rank]
        self._silent = False
        self._calls = 0

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return len(self._group.devices)

    def all_reduce(self, x: Tensor) -> Tensor:
        assert x.is_contiguous()
        if self._silent or not x.numel():
            return x
        given = self._exchange(x, "all_reduce")
        total = given[0]
        for each in given[1:]:
            total = total + each
        if self._group.in_place:
            return x.copy_(total)
        _spoil(x)
        return total

    def all_gather(self, x_RN: Tensor) -> Tensor:
        if self._silent or not x_RN.numel():
            return x_RN.repeat(1, self.size)
        return torch.cat(self._exchange(x_RN, "all_gather"), 1)

    def _exchange(self, x: Tensor, kind: str) -> list[Tensor]:
        """What all ranks give, in their order. Pauses the phase."""
        group, device, rank = self._group, self._device, self._rank
        if self._calls == len(group.collectives):
            group.collectives.append(_Collective(f"{group.name}, {self._calls}", group.devices))
        collective = group.collectives[self._calls]
        self._calls += 1
        collective.give(rank, x, kind)
        event, delay = device.event(device.running.stream, []), group.delays.draw()

        def at() -> float | None:
            return None if collective.complete_at is None else collective.complete_at + delay

        def leave() -> None:
            collective.contents()
            event.clock = collective.clock()
            event.reached, event.reached_at = True, device.now

        group.leaving[rank].add(at, leave)
        device.pause(event)
        return collective.contents()

    def send(self, x: Tensor, to: int) -> None:
        assert x.is_contiguous()
        if x.numel() and not self._silent:
            self._group.links[self._rank, to].send(self._device, x)

    def receive(self, x: Tensor, source: int) -> PendingReceive:
        assert x.is_contiguous()
        if not x.numel() or self._silent:
            return THERE
        return self._group.links[source, self._rank].receive(self._device, x)

    @contextmanager
    def silent(self) -> Iterator[None]:
        before, self._silent = self._silent, True
        try:
            yield
        finally:
            self._silent = before

    def close(self) -> None:
        pass


class SimulatedChannel:
    """A `RankChannel` of ranks on simulated devices, whose messages are late."""

    descriptor = None

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._others: list[tuple[SimulatedChannel, _Lane]] = []
        self._arrived: deque[tuple[bytes, Clock]] = deque()
        assert device.schedule is not None
        self._delays = _Delays(device.schedule)

    def connect(self, other: "SimulatedChannel", name: str) -> None:
        self._others.append((other, _Lane(name, self._device.shared_time)))

    def send(self, message: bytes) -> None:
        clock = self._device.host_clock()
        for other, lane in self._others:
            at = self._device.now + self._delays.draw()
            lane.add(lambda at=at: at, lambda other=other: other._arrived.append((message, clock)))  # type: ignore[misc]

    def take(self) -> bytes | None:
        if not self._arrived:
            return None
        message, clock = self._arrived.popleft()
        self._device.host_learns(clock)
        return message

    def close(self) -> None:
        pass


class SimulatedRanks:
    """devices, ranks: by rank. blocks: whether transfers occupy their stream, as on CUDA."""

    def __init__(
        self,
        layout: RankLayout,
        seed: int,
        *,
        without: str | None = None,
        without_at: int | None = None,
        without_on: str | None = None,
        blocks: bool | None = None,
        device: type[SimulatedDevice] = SimulatedDevice,
    ) -> None:
        """without, without_on: as of `SimulatedDevice`; also a phase, by module and name, whose `PendingReceive.wait` is left out.
        without_at: at this rank only. blocks: None for what the seed decides. device: the class of the devices."""
        shared_time = SharedTime(seed)
        assert shared_time.schedule is not None
        self.random = shared_time.schedule.random
        drawn = self.random.random() < 0.5
        self.blocks = drawn if blocks is None else blocks
        self.devices = [
            device(
                without=without if without_at in (None, rank) else None, without_on=without_on, shared_time=shared_time
            )
            for rank in range(layout.size)
        ]
        for each in self.devices:
            each.transfers_block = self.blocks
            each.phases_pause = layout.tensor > 1

        def group(name: str, ranks: Sequence[int]) -> _Group:
            return _Group(name, [self.devices[rank] for rank in ranks], shared_time, self.blocks)

        everyone = range(layout.size)
        shared = group("inputs", everyone)
        channels = [SimulatedChannel(each) for each in self.devices]
        for rank in everyone[1:]:
            channels[0].connect(channels[rank], f"messages 0->{rank}")
        groups: dict[tuple[str, int], _Group] = {}
        for part in range(layout.tensor):
            column = sorted((r for r in everyone if r % layout.tensor == part), key=layout.position)
            for name in ("hidden", "tokens"):
                groups[name, part] = group(f"{name} {part}", column)
        for position in range(layout.pipeline):
            row = [rank for rank in everyone if layout.position(rank) == position]
            groups["tensor", position] = group(f"tensor {position}", row)
        self.ranks: list[Ranks] = []
        for rank in everyone:
            position, part = layout.position(rank), rank % layout.tensor
            tensor, pipeline = None, None
            if layout.tensor > 1:
                tensor = SimulatedCommunicator(groups["tensor", position], part)
            if layout.pipeline > 1:
                hidden, tokens = (SimulatedCommunicator(groups[name, part], position) for name in ("hidden", "tokens"))
                pipeline = PipelineRank(position=position, size=layout.pipeline, hidden=hidden, tokens=tokens)
            own = EqualRanks(
                rank=rank,
                size=layout.size,
                communicator=SimulatedCommunicator(shared, rank),
                channel=channels[rank],
                tensor=tensor,
                pipeline=pipeline,
            )
            self.ranks.append(own)

    def simulation(self, ticks: Sequence[Callable[[], bool]], idle: Callable[[], bool]) -> Simulation:
        """A simulation of the ranks' engines. ticks: one of each rank. A round has some of the ranks tick, in any order; the seed
        decides which, and how slow each one is."""
        chances = [self.random.choice((1.0, 0.7, 0.2)) for _ in ticks]
        behind = [0] * len(ticks)

        def tick() -> bool:
            moved = False
            for rank in self.random.sample(range(len(ticks)), len(ticks)):
                behind[rank] += 1
                if behind[rank] >= _MOST_ROUNDS or self.random.random() < chances[rank]:
                    behind[rank] = 0
                    moved |= ticks[rank]()
            return moved

        return Simulation(self.devices[0], tick, idle)

    def close(self) -> None:
        for device in self.devices:
            device.close()

    def assert_no_races(self) -> None:
        """At any rank."""
        for device in self.devices:
            device.assert_no_races()
