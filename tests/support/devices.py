"""Devices that count, queue or reorder launches, and settings that tests on a GPU run under."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from omni.device import Device, Graph, Launch, Phase, Stream
from omni.device.cpu import CpuDevice
from omni.device.cuda import CudaDevice
from omni.testing import SimulatedDevice
from omni.testing.simulation.late import QueuedDevice, StirredDevice


class Counting(Device):
    """Counts replays of graphs, by name, and launches outside of them, by phase."""

    def __init__(self, *torch_device: torch.device) -> None:
        super().__init__(*torch_device)
        self.replays: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()
        self._replaying = False

    def replay(self, stream: Stream, graph: Graph) -> None:
        self.replays[graph.name] += 1
        self._replaying = True
        super().replay(stream, graph)
        self._replaying = False

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        self.launches[phase.__name__] += not self._replaying
        super().launch(stream, phase, *buffers)


class CountingDevice(Counting, CpuDevice):
    pass


class CountingCuda(Counting, CudaDevice):
    pass


DEVICES: dict[str, Callable[[], Device]] = {
    "cpu": CpuDevice,
    "queued": QueuedDevice,
    "stirred": lambda: StirredDevice(5),
}


class WarmingDevice(CpuDevice):
    """Runs launches before it captures them, as a CUDA device does. times: how often. captured, replayed: names of graphs."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.captured: list[str] = []
        self.replayed: list[str] = []
        self._times = times

    def capture(self, stream: Stream, name: str, launches: Sequence[Launch]) -> Graph:
        self.captured.append(name)
        for _ in range(self._times):
            self.enqueue(stream, launches)
        return super().capture(stream, name, launches)

    def replay(self, stream: Stream, graph: Graph) -> None:
        self.replayed.append(graph.name)
        super().replay(stream, graph)


class HungDevice(SimulatedDevice):
    """Runs no launch by itself. clock: seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = 0.0

    def seconds(self) -> float:
        return self.clock


class ClockedCpu(CpuDevice):
    """clock: seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = 0.0

    def seconds(self) -> float:
        return self.clock


@contextmanager
def no_synchronization() -> Iterator[None]:
    """Inside, a synchronizing CUDA operation raises RuntimeError. Process-wide: for tests that have the device to themselves."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextmanager
def full_float32() -> Iterator[None]:
    """Inside, there is no TF32, which cuDNN's convolutions would use by default."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
