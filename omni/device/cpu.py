"""The CPU behind the device interface: a launch runs at once, so every event is done when it is recorded."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from omni.device.base import COMPLETED, Device, Event, Stream


@dataclass(frozen=True, slots=True)
class CpuStream:
    name: str


class CpuDevice(Device):
    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))

    def stream(self, name: str, *, priority: int = 0) -> CpuStream:
        return CpuStream(name)

    def record(self, stream: Stream) -> Event:
        return COMPLETED

    def wait(self, stream: Stream, event: Event) -> None:
        pass

    def host_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    def synchronize(self) -> None:
        pass

    def _on(self, stream: Stream) -> AbstractContextManager[object]:
        return nullcontext()
