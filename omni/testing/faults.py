"""Devices on which a chosen launch fails, and an owner of memory that overwrites it as soon as allowed."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from torch import Tensor

from omni.connector import Ref
from omni.device import Device, Phase, Stream
from omni.device.cpu import CpuDevice, CpuStream
from omni.testing.simulation.late import StirredDevice
from omni.testing.simulation.stream import SimulatedStream

T = TypeVar("T")

Place = tuple[str, str]
"""A stage and the name of a phase that it launches."""
ANY = "any stage"


class PlantedError(Exception):
    """The error that tests plant."""


@dataclass(slots=True)
class PlantedFailure:
    """Raises when something happens at `place` for the time number `number`, counted from 0 when it was planted."""

    place: Place
    number: int
    after: bool
    left: bool = True


@dataclass(slots=True)
class Faults:
    """Counts the phases that are launched, and makes one of them raise. after: once it was launched, else instead of it."""

    seen: Counter[Place] = field(default_factory=Counter)
    planted: PlantedFailure | None = None
    _owners: dict[int, tuple[Stream, str]] = field(default_factory=dict)

    def plant(self, place: Place, number: int, *, after: bool) -> PlantedFailure:
        self.seen.clear()
        self.planted = PlantedFailure(place, number, after)
        return self.planted

    def own(self, stream: Stream) -> None:
        """Records the stage of the stream: streams have their stage's name."""
        self._owners[id(stream)] = (stream, stream.name.removesuffix("-copy"))

    def call(self, place: Place, action: Callable[[], T], fail: Callable[[], NoReturn]) -> T:
        """Runs the action, raises the planted error, or both."""
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
    """Raises a PlantedError."""
    raise PlantedError("planted")


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

    An error of a phase is raised by its launch, as on a real device; on a simulated one it is raised when the phase runs.
    """

    def __init__(self, seed: int | None) -> None:
        super().__init__(seed)
        self.faults = Faults()

    def fail(self, phase: str, number: int, *, after: bool) -> None:
        """Fails the launch of this number, counted from now over all stages."""
        self.faults.plant((ANY, phase), number, after=after)

    @property
    def failures(self) -> int:
        """Number of times that the planted fault occurred."""
        fault = self.faults.planted
        return int(fault is not None and not fault.left)

    def stream(self, name: str, *, priority: int = 0) -> SimulatedStream:
        stream = super().stream(name, priority=priority)
        self.faults.own(stream)
        return stream

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        launch = super().launch
        self.faults.launch(self, stream, phase, lambda: launch(stream, phase, *buffers))


# A failure half-way on a late device: earlier launches still run, and the memory that they read is still in use.

REUSED = 7
"""Content of memory that its owner has written again."""


class Owner:
    """The owner of memory that stages read. It overwrites the memory, on a stream of its own, as soon as allowed."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stream = device.stream("owner")
        self._lent: list[tuple[Ref, Tensor]] = []

    @property
    def waiting(self) -> int:
        """Number of lent tensors that are still in use."""
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
