"""A device whose phases run on the CPU, except their kernels: these are recorded, as a GPU would be asked to launch them."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from omni.device import Graph, Launch, Stream
from omni.device.base import LaunchList, Phase
from omni.device.cpu import CpuDevice
from omni.device.kernel_choice import kernels_of
from omni.kernels import VariantRecorder

GPU = torch.device("cuda", 63)
"""A device that does not exist, and that no other test looks up."""


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0)) -> None:
    """Gives `GPU` properties."""
    found = SimpleNamespace(name="not measured", major=capability[0], minor=capability[1], multi_processor_count=8)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)


class ClearingRecorder(VariantRecorder):
    """Clears the arguments of each launch, so that the missing results of a kernel are no invalid indexes."""

    def take(
        self, launch: Callable[..., object], kernel: Any, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> object:
        super().take(launch, kernel, args, kwargs)
        for value in (*args, *kwargs.values()):
            for tensor in value if isinstance(value, tuple) else (value,):
                if isinstance(tensor, Tensor):
                    tensor.zero_()
        return None


class LaunchedDevice(CpuDevice):
    """Takes captures, as a GPU does."""

    captures: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.recorder = ClearingRecorder()

    @property
    def kernel_device(self) -> torch.device:
        return GPU

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        with kernels_of(GPU), self.recorder.recording():
            super().launch(stream, phase, *buffers)

    def capture(self, stream: Stream, name: str, launches: Sequence[Launch]) -> Graph:
        self.enqueue(stream, launches)
        return LaunchList(name, tuple(launches))
