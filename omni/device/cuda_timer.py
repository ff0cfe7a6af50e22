"""Run times of phases on a CUDA device."""

import time
from collections.abc import Callable

import torch

from omni.device.observer import ObservedStream, Stamp


class CudaStamp:
    """A timing event."""

    __slots__ = ("raw",)

    def __init__(self) -> None:
        self.raw = torch.cuda.Event(enable_timing=True)

    def done(self) -> bool:
        return bool(self.raw.query())


class CudaTimer:
    """Reuses timing events: to create one takes longer than to record it."""

    def __init__(self, device: torch.device, raw_of: Callable[[ObservedStream], torch.cuda.Stream]) -> None:
        """raw_of: returns torch's stream of a device's stream."""
        self._raw_of = raw_of
        self._idle = torch.cuda.Stream(device)
        self._pool: list[CudaStamp] = []

    def stamp(self, stream: ObservedStream) -> CudaStamp:
        stamp = self._pool.pop() if self._pool else CudaStamp()
        stamp.raw.record(self._raw_of(stream))
        return stamp

    def elapsed(self, first: Stamp, second: Stamp) -> int:
        assert isinstance(first, CudaStamp)
        assert isinstance(second, CudaStamp)
        milliseconds: float = first.raw.elapsed_time(second.raw)  # a float32
        return round(milliseconds * 1e6)

    def give_back(self, stamp: Stamp) -> None:
        assert isinstance(stamp, CudaStamp)
        self._pool.append(stamp)

    def probe(self) -> tuple[CudaStamp, int, int]:
        stamp = CudaStamp()
        before = time.perf_counter_ns()
        stamp.raw.record(self._idle)
        while not stamp.done():
            pass  # a few microseconds: the stream is otherwise idle
        return stamp, before, time.perf_counter_ns()
