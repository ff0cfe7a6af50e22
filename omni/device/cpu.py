"""The CPU behind the device interface: a launch runs at once, so every event is done when it is recorded."""

from dataclasses import dataclass

import torch

from omni.device.base import COMPLETED, Device, Event, Stream
from omni.device.sync import host_waits


@dataclass(frozen=True, slots=True)
class CpuStream:
    name: str


class CpuDevice(Device):
    def __init__(self, torch_device: str = "cpu") -> None:
        super().__init__(torch.device(torch_device))

    def stream(self, name: str, *, priority: int = 0) -> CpuStream:
        return CpuStream(name)

    def record(self, stream: Stream) -> Event:
        return COMPLETED

    def wait(self, stream: Stream, event: Event) -> None:
        pass

    def synchronize(self) -> None:
        host_waits("Device.synchronize")
