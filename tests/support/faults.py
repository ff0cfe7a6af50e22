"""Things that raise once, at a chosen place: among them devices, on which a chosen phase of a chosen stage does."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from omni.device import Device, Phase, Stream
from omni.device.cpu import CpuDevice, CpuStream
from omni.testing.simulation import SimulatedStream
from support.stirred_device import StirredDevice

T = TypeVar("T")

Place = tuple[str, str]
"""A stage and the name of a phase that it launches."""


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
    """Counts the phases that are launched, and says which one is to raise. after: once it was launched, else instead of it."""

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
    """Work that was launched before the fault runs after it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.faults = Faults()

    def stream(self, name: str, *, priority: int = 0) -> SimulatedStream:
        stream = super().stream(name, priority=priority)
        self.faults.own(stream)
        return stream

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        launch = super().launch
        self.faults.launch(self, stream, phase, lambda: launch(stream, phase, *buffers))
