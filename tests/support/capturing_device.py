"""A CPU that runs what it captures, as a GPU does: libraries take their memory then, and kernels are compiled."""

from collections.abc import Sequence

from omni.device import Graph, Launch, Stream
from omni.device.cpu import CpuDevice


class CapturingDevice(CpuDevice):
    """Runs it so many times. captured: names of graphs."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.captured: list[str] = []
        self._times = times

    def capture(self, stream: Stream, name: str, launches: Sequence[Launch]) -> Graph:
        self.captured.append(name)
        for _ in range(self._times):
            self.enqueue(stream, launches)
        return super().capture(stream, name, launches)
