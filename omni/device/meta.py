"""A device without memory: tensors have shapes but no contents, and phases do not run. For footprints of stages."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from omni.device.base import COMPLETED, Device, Event, Phase, Stream


@dataclass(frozen=True, slots=True)
class MetaStream:
    name: str


class MetaDevice(Device):
    """Stages are loaded on it with load format `"dummy"`, but not started: no phase would have a result."""

    def __init__(self) -> None:
        super().__init__(torch.device("meta"))

    def stream(self, name: str, *, priority: int = 0) -> MetaStream:
        return MetaStream(name)

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        pass

    def record(self, stream: Stream) -> Event:
        return COMPLETED

    def wait(self, stream: Stream, event: Event) -> None:
        pass

    def host_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device="cpu")

    def synchronize(self) -> None:
        pass

    def _on(self, stream: Stream) -> AbstractContextManager[object]:
        return nullcontext()
