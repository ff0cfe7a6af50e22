"""A CUDA device: torch streams and events."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from omni.device.base import COMPLETED, Device, Event, Stream


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
        torch.cuda.synchronize(self.torch_device)

    def _on(self, stream: Stream) -> AbstractContextManager[object]:
        assert isinstance(stream, CudaStream)
        return torch.cuda.stream(stream.raw)
