"""A device without memory: tensors have shapes but no contents, and phases do not run. For footprints of stages."""

from omni.device.base import Phase, Stream
from omni.device.cpu import CpuDevice


class MetaDevice(CpuDevice):
    """Stages are loaded on it with load format `"dummy"`, but not started: no phase would have a result."""

    def __init__(self) -> None:
        super().__init__("meta")

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        pass

    def synchronize(self) -> None:
        pass
