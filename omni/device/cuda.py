"""A CUDA device: torch streams and events."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from omni.device.base import COMPLETED, Device, Event, Stream
from omni.device.sync import host_waits
from omni.device.sync_points import SyncPoint, may_sync


@dataclass(frozen=True, slots=True)
class CudaStream:
    name: str
    raw: torch.cuda.Stream


@dataclass(frozen=True, slots=True)
class CudaEvent:
    raw: torch.cuda.Event

    def done(self) -> bool:
        return bool(self.raw.query())


class CudaDevice(Device):
    def __init__(self, index: int = 0) -> None:
        super().__init__(torch.device("cuda", index))

    def stream(self, name: str, *, priority: int = 0) -> CudaStream:
        return CudaStream(name, torch.cuda.Stream(self.torch_device, priority=priority))

    def record(self, stream: Stream) -> Event:
        assert isinstance(stream, CudaStream)
        event = torch.cuda.Event()
        event.record(stream.raw)
        return CudaEvent(event)

    def wait(self, stream: Stream, event: Event) -> None:
        if event is COMPLETED:
            return
        assert isinstance(stream, CudaStream)
        assert isinstance(event, CudaEvent)
        stream.raw.wait_event(event.raw)

    def host_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, pin_memory=True)

    def synchronize(self) -> None:
        host_waits("Device.synchronize")
        torch.cuda.synchronize(self.torch_device)

    def free_memory(self) -> int:
        with may_sync(SyncPoint.FREE_MEMORY):
            self.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.torch_device)[0]

    def measure_peak(self, run: Callable[[], None]) -> int:
        """As the allocator counts it, in whole segments: what is lost between tensors is not there for others either.

        What the allocator does not hand out (code of kernels loaded meanwhile, libraries' own buffers) shows in what the device
        has left, and stays.
        """
        device = self.torch_device
        free, reserved = self.free_memory(), torch.cuda.memory_reserved(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        with may_sync(SyncPoint.MEASURE):
            self.synchronize()
        peak = torch.cuda.max_memory_reserved(device) - reserved
        kept = free - self.free_memory()
        outside = kept - (torch.cuda.memory_reserved(device) - reserved)
        return peak + max(outside, 0)

    def _on(self, stream: Stream) -> AbstractContextManager[object]:
        assert isinstance(stream, CudaStream)
        return torch.cuda.stream(stream.raw)
