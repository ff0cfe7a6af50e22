"""Work that fails half-way on a device that is late: what was launched before still runs, and what it reads is still in use."""

from collections.abc import Callable

import torch
from torch import Tensor

from omni.connector import Ref
from omni.device import Device, Phase, Stream
from omni.stage import StageWorker
from omni.testing import SimulatedDevice, Simulation

REUSED = 7
"""What stands in memory that its owner has written again."""


class LateFaultyDevice(SimulatedDevice):
    """Fails to launch a phase once: `fail` says which, whether instead of the launch or behind it. faults: how often it did.

    What a phase raises comes out of its launch, as on a device that is real; on a simulated one it comes out when the phase runs.
    """

    def __init__(self, seed: int | None) -> None:
        super().__init__(seed)
        self.faults = 0
        self._failing: str | None = None
        self._left = 0
        self._after = False

    def fail(self, phase: str, number: int, *, after: bool) -> None:
        """At the launch of that number from now on, the first being 0."""
        self._failing, self._left, self._after = phase, number, after

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        if phase.__name__ != self._failing:
            super().launch(stream, phase, *buffers)
            return
        self._left -= 1
        if self._left >= 0:
            super().launch(stream, phase, *buffers)
            return
        self._failing = None
        self.faults += 1
        if self._after:
            super().launch(stream, phase, *buffers)
        # As a device does that runs phases when they are launched: with the phase in the error's notes.
        Device.launch(self, stream, _raising(phase.__name__))


def _raising(name: str) -> Phase:
    def phase() -> None:
        raise ValueError("a fault")

    phase.__name__ = name
    return phase


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
