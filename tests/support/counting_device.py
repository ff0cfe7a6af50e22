"""Devices that count what is replayed, and what is not."""

from collections import Counter

from omni.device import Device, Graph, Phase, Stream
from omni.device.cpu import CpuDevice
from omni.device.cuda import CudaDevice


class Counting(Device):
    """replays: of graphs, by name. launches: outside of them, by phase."""

    def __init__(self) -> None:
        super().__init__()
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
