"""Things that raise once, at a chosen place: among them devices, on which a chosen phase of a chosen stage does."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, TypeVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.connector import Ref
from omni.device import Device, Phase, Stream
from omni.device.cpu import CpuDevice, CpuStream
from omni.payload import PageSlice
from omni.stage import Failed, StageWorker
from omni.testing import SimulatedDevice, Simulation
from omni.testing.simulation.stream import SimulatedStream
from tests.support.devices import StirredDevice
from tests.support.frame_bench import PAGE, POISON, FrameBench, frames

T = TypeVar("T")

Place = tuple[str, str]
"""A stage and the name of a phase that it launches."""
ANY = "any stage"


class PlantedError(Exception):
    """What the tests raise."""


@dataclass(slots=True)
class Fault:
    """Raises when something happens at `place` for the time number `number`, counted from 0 when it was planted."""

    place: Place
    number: int
    after: bool
    left: bool = True


@dataclass(slots=True)
class Faults:
    """Counts the phases that are launched, and makes one of them raise. after: once it was launched, else instead of it."""

    seen: Counter[Place] = field(default_factory=Counter)
    planted: Fault | None = None
    _owners: dict[int, tuple[Stream, str]] = field(default_factory=dict)

    def plant(self, place: Place, number: int, *, after: bool) -> Fault:
        self.seen.clear()
        self.planted = Fault(place, number, after)
        return self.planted

    def own(self, stream: Stream) -> None:
        """Notes whose stream it is: streams bear their stage's name."""
        self._owners[id(stream)] = (stream, stream.name.removesuffix("-copy"))

    def call(self, place: Place, action: Callable[[], T], fail: Callable[[], NoReturn]) -> T:
        """Acts, or fails, or both."""
        if self.planted is not None and self.planted.place[0] == ANY:
            place = (ANY, place[1])
        number = self.seen[place]
        self.seen[place] += 1
        fault = self.planted
        if fault is None or not fault.left or (fault.place, fault.number) != (place, number):
            return action()
        fault.left = False
        if fault.after:
            action()
        return fail()

    def launch(self, device: Device, stream: Stream, phase: Phase, launch: Callable[[], None]) -> None:
        """As `call`, for a phase."""

        def fail() -> NoReturn:
            Device.launch(device, stream, _raising(phase.__name__))
            raise AssertionError("launched")

        self.call((self._owners[id(stream)][1], phase.__name__), launch, fail)


def planted() -> NoReturn:
    """Raises."""
    raise PlantedError("planted")


def spoil(patch: pytest.MonkeyPatch, owner: type, method: str) -> Faults:
    """Makes a method of a class able to fail once. Its place is the names of the two."""
    faults, real = Faults(), vars(owner)[method]

    def spoilt(*arguments: Any) -> Any:
        return faults.call((owner.__name__, method), lambda: real(*arguments), planted)

    patch.setattr(owner, method, spoilt)
    return faults


def _raising(name: str) -> Phase:
    def phase(*buffers: object) -> None:
        planted()

    phase.__name__ = name
    return phase


class FaultyDevice(CpuDevice):
    def __init__(self) -> None:
        super().__init__()
        self.faults = Faults()

    def stream(self, name: str, *, priority: int = 0) -> CpuStream:
        stream = super().stream(name, priority=priority)
        self.faults.own(stream)
        return stream

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        self.faults.launch(self, stream, phase, lambda: Device.launch(self, stream, phase, *buffers))


class FaultyStirredDevice(StirredDevice):
    """Work that was launched before the fault runs after it.

    What a phase raises comes out of its launch, as on a real device; on a simulated one it comes out when the phase runs.
    """

    def __init__(self, seed: int | None) -> None:
        super().__init__(seed)
        self.faults = Faults()

    def fail(self, phase: str, number: int, *, after: bool) -> None:
        """At the launch of that number from now on, of any stage's."""
        self.faults.plant((ANY, phase), number, after=after)

    @property
    def failures(self) -> int:
        """How often the planted fault occurred."""
        fault = self.faults.planted
        return int(fault is not None and not fault.left)

    def stream(self, name: str, *, priority: int = 0) -> SimulatedStream:
        stream = super().stream(name, priority=priority)
        self.faults.own(stream)
        return stream

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        launch = super().launch
        self.faults.launch(self, stream, phase, lambda: launch(stream, phase, *buffers))


# Work that fails half-way on a device that is late: what was launched before still runs, and what it reads is still in use.

REUSED = 7
"""What stands in memory that its owner has written again."""


class Owner:
    """Whose memory stages read: writes over it, on a stream of its own, as soon as it may."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stream = device.stream("owner")
        self._lent: list[tuple[Ref, Tensor]] = []

    @property
    def waiting(self) -> int:
        """What is not its own yet."""
        return len(self._lent)

    def lend(self, ref: Ref, *memory: Tensor) -> None:
        """The memory is lent as long as `ref` is not freed."""
        self._lent += [(ref, tensor) for tensor in memory]

    def reuse(self) -> bool:
        """Returns whether there was any."""
        left = []
        for ref, tensor in self._lent:
            if ref.freed:
                self._device.launch(self._stream, write_over, tensor)
            else:
                left.append((ref, tensor))
        moved, self._lent = len(left) < len(self._lent), left
        return moved


def write_over(memory: Tensor) -> None:
    memory.fill_(REUSED)


def simulate(device: SimulatedDevice, tick: Callable[[], bool], over: Callable[[], bool]) -> Simulation:
    """A simulation of a stage that runs in inference mode, as an engine's do."""

    def inferring() -> bool:
        with torch.inference_mode():
            return tick()

    return Simulation(device, inferring, over)


def idle(worker: StageWorker) -> bool:
    """Whether it holds nothing."""
    return not worker.inbox and not any(worker.usage().values())


# Streams of frames whose producer writes over its memory as soon as it may, for stages in which something fails half-way.


class LateFrames:
    """Feeds a stage, each payload from memory of its own: page rows, or a tensor every other time."""

    def __init__(self, device: FaultyStirredDevice, bench: FrameBench) -> None:
        self.device = device
        self.bench = bench
        self.owner = Owner(device)
        self._fed = 0

    def play(self, codes: dict[str, NDArray[np.int64]], parts: int = 3) -> None:
        """Requests come within a few rounds of each other, and their frames in parts. Until nothing is held or lent."""
        simulation = simulate(self.device, self._turn, lambda: self._over(codes))
        for name, rows in codes.items():
            tick = 0
            for number, part in enumerate(np.array_split(rows, parts)):
                tick += simulation.random.randrange(20 if not number else 12)
                simulation.at(tick, partial(self.feed, name, part), "feed")
            simulation.at(tick, partial(self.bench.end, name), "end")
        simulation.run()

    def feed(self, name: str, codes: NDArray[np.int64]) -> None:
        self._fed += 1
        if self._fed % 2:
            pages = torch.full((len(codes) // PAGE + 2, PAGE, codes.shape[1]), POISON)
            slots = np.random.default_rng(self._fed).permutation(pages.shape[0] * PAGE)[: len(codes)]
            pages.flatten(0, 1)[torch.from_numpy(slots)] = torch.from_numpy(codes)
            self.owner.lend(self.bench.feed(name, frames(PageSlice(pages, slots))), pages)
        else:
            memory = torch.from_numpy(codes).clone()
            self.owner.lend(self.bench.feed(name, frames(memory)), memory)

    @property
    def failed(self) -> set[str]:
        return {name for name, end in self.bench.ends.items() if isinstance(end, Failed)}

    def _turn(self) -> bool:
        return self.bench.tick() | self.owner.reuse()

    def _over(self, codes: dict[str, NDArray[np.int64]]) -> bool:
        return len(self.bench.ends) == len(codes) and not self.owner.waiting and idle(self.bench.worker)
