"""Collectives of simulated ranks, and their communicators."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from omni.parallel import PendingReceive
from omni.parallel.communicator import ARRIVED
from omni.parallel.rank_memory import RankMemory
from omni.testing.simulation.checker import Running
from omni.testing.simulation.device import SimulatedDevice
from omni.testing.simulation.lanes import DelayedLane, Delays
from omni.testing.simulation.shared_time import SharedTime
from omni.testing.simulation.stream import Clock, join
from omni.testing.simulation.transfers import TransferLink, spoil


class SimulatedCollective:
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
        """Returns what each rank contributed, by rank."""
        if self._contents is None:
            self._contents = []
            for rank, device in enumerate(self._devices):
                x, running = self._given[rank]
                with device.recorded(running):
                    self._contents.append(x.clone())
        return self._contents

    def clock(self) -> Clock:
        """The events that happened before it at any rank."""
        clock: Clock = []
        for _, running in self._given.values():
            join(clock, running.launched.clock)
        return clock


class RankGroup:
    """Ranks that communicate. blocks: see `TransferLink`."""

    def __init__(self, name: str, devices: Sequence[SimulatedDevice], shared_time: SharedTime, blocks: bool) -> None:
        self.name = name
        self.devices = devices
        self.shared_time = shared_time
        assert shared_time.schedule is not None
        self.delays = Delays(shared_time.schedule)
        self.in_place = self.delays.chance()
        """Whether sums overwrite their input; otherwise the input is filled with garbage."""
        self.leaving = [DelayedLane(f"{name} leaving {rank}", shared_time) for rank in range(len(devices))]
        self.collectives: list[SimulatedCollective] = []
        self.links = {
            (source, to): TransferLink(f"{name} {source}->{to}", shared_time, blocks)
            for source in range(len(devices))
            for to in range(len(devices))
            if source != to
        }


class SimulatedCommunicator:
    """A `Communicator` of ranks on simulated devices."""

    def __init__(self, group: RankGroup, rank: int) -> None:
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
        spoil(x)
        return total

    def rank_memory(self, x: Tensor) -> RankMemory | None:
        return None

    def all_gather(self, x_RN: Tensor) -> Tensor:
        if self._silent or not x_RN.numel():
            return x_RN.repeat(1, self.size)
        return torch.cat(self._exchange(x_RN, "all_gather"), 1)

    def _exchange(self, x: Tensor, kind: str) -> list[Tensor]:
        """The contributions of all ranks, in rank order. Pauses the phase."""
        group, device, rank = self._group, self._device, self._rank
        if self._calls == len(group.collectives):
            group.collectives.append(SimulatedCollective(f"{group.name}, {self._calls}", group.devices))
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

    def post(self, x: Tensor, to: int) -> None:
        assert x.is_contiguous()
        if x.numel() and not self._silent:
            self._group.links[self._rank, to].send(self._device, x, posted=True)

    def receive(self, x: Tensor, source: int) -> PendingReceive:
        assert x.is_contiguous()
        if not x.numel() or self._silent:
            return ARRIVED
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
