"""A device that runs no launch, and records the kernels that launches need on another device."""

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch

from omni.device.base import Graph, Launch, LaunchList, Phase, SharedMemory, Stream
from omni.device.kernel_choice import kernels_of
from omni.device.meta import MetaDevice
from omni.kernels.recorder import VariantRecorder
from omni.kernels.shape_rules import ShapeRules
from omni.utils.log import safe_logger

_log = safe_logger(__name__)


class RecordingDevice(MetaDevice):
    """Phases run on tensors without contents, and their kernels are recorded instead of launched.

    A phase that needs contents, such as a copy to the host, ends there; its later launches are not recorded. failed: names of such
    phases.
    """

    captures: ClassVar[bool] = True

    def __init__(self, kernel_device: torch.device, recorder: VariantRecorder) -> None:
        super().__init__()
        self._kernel_device = kernel_device
        self._recorder = recorder
        self.failed: set[str] = set()

    @property
    def kernel_device(self) -> torch.device:
        return self._kernel_device

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        outer, self.launching = self.launching, phase.__name__
        try:
            with kernels_of(self._kernel_device), self._recorder.recording(), ShapeRules():
                phase(*buffers)
        except Exception as error:
            if phase.__name__ not in self.failed:
                _log.debug("phase %s is recorded up to an error: %s", phase.__name__, error)
            self.failed.add(phase.__name__)
        finally:
            self.launching = outer

    def capture(self, stream: Stream, name: str, launches: Sequence[Launch]) -> Graph:
        self.enqueue(stream, launches)
        return LaunchList(name, ())

    def replay(self, stream: Stream, graph: Graph) -> None:
        pass  # its launches were recorded when it was captured

    def shared(self, shape: tuple[int, ...], dtype: torch.dtype) -> SharedMemory:
        return SharedMemory(self.host_tensor(shape, dtype), self.zeros(shape, dtype))

    def measure_peak(self, run: Callable[[], None]) -> int:
        run()
        return 0
