"""Devices that also mark moments on their streams, to be read when a run is over."""

import time

import torch

from omni.device import Device, Stream
from omni.device.cpu import CpuDevice
from omni.device.cuda import CudaDevice, CudaStream
from omni_ar.run.phases import HAND_OVER

Mark = torch.cuda.Event | int
"""A moment on a stream: a timed event, or nanoseconds on the host's clock."""


class TimedCuda(CudaDevice):
    """token_marks: by stage, its newest token point. Free memory bounds no stage: each gets the memory of its options."""

    def __init__(self) -> None:
        super().__init__()
        self.token_marks: dict[str, Mark] = {}

    def free_memory(self) -> None:  # type: ignore[override]
        return None

    def moment(self, stream: Stream, name: str) -> None:
        super().moment(stream, name)
        if name == HAND_OVER:
            self.token_marks[stream.name] = self.mark(stream)

    def mark(self, stream: Stream) -> Mark:
        """The moment after everything on the stream."""
        assert isinstance(stream, CudaStream)
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream.raw)
        return event


class TimedCpu(CpuDevice):
    """A CPU with the interface of `TimedCuda`: a launched phase has run."""

    def __init__(self) -> None:
        super().__init__()
        self.token_marks: dict[str, Mark] = {}

    def moment(self, stream: Stream, name: str) -> None:
        super().moment(stream, name)
        if name == HAND_OVER:
            self.token_marks[stream.name] = self.mark(stream)

    def mark(self, stream: Stream) -> Mark:
        return time.perf_counter_ns()


TimedDevice = TimedCuda | TimedCpu


def open_timed(name: str) -> TimedDevice:
    """name: `"cuda"` or `"cpu"`."""
    return TimedCuda() if name == "cuda" else TimedCpu()


def passed(mark: Mark) -> bool:
    """Whether the stream has reached the mark. Never blocks."""
    return mark.query() if isinstance(mark, torch.cuda.Event) else True


def microseconds(first: Mark, second: Mark) -> float:
    """Between two moments of one device, which has been synchronized since."""
    if isinstance(first, torch.cuda.Event):
        assert isinstance(second, torch.cuda.Event)
        return float(first.elapsed_time(second)) * 1000
    assert isinstance(second, int)
    return (second - first) / 1000


def synchronize(device: Device) -> None:
    if device.torch_device.type == "cuda":
        torch.cuda.synchronize(device.torch_device)
