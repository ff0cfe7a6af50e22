"""The devices of a stage's checks."""

from omni.device import Device, Phase, Stream
from omni.device.cpu import CpuDevice
from omni.testing.faults import PlantedError

OWN = "check-"
"""The names of the suite's own streams begin so."""


class FailingDevice(CpuDevice):
    """Counts the stage's launches, and makes one of them raise, once. launches: since the last `fail_at`."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = 0
        self._at: int | None = None

    def fail_at(self, number: int) -> None:
        """The launch of that number, from 0, counted from now."""
        self.launches, self._at = 0, number

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        if stream.name.startswith(OWN):
            super().launch(stream, phase, *buffers)
            return
        number, self.launches = self.launches, self.launches + 1
        if number == self._at:
            raise_planted.__name__ = phase.__name__
            Device.launch(self, stream, raise_planted)
        super().launch(stream, phase, *buffers)


def raise_planted(*buffers: object) -> None:
    raise PlantedError("planted by the suite")
