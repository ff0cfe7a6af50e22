"""The CPU behind the device interface: a launch runs at once, so every event is done when it is recorded."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from omni.device.base import COMPLETED, Device, Event, Stream
from omni.device.sync import host_waits


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
        # Allocated by numpy, so that it does not count as device memory, which is the same memory here.
        words = np.zeros(shape, np.dtype(str(dtype).removeprefix("torch.")))
        return torch.from_numpy(words)

    def synchronize(self) -> None:
        host_waits("Device.synchronize")

    def _on(self, stream: Stream) -> AbstractContextManager[object]:
        return nullcontext()
