"""A device whose streams run only when the test says so, as a busy accelerator's would."""

from omni.testing import SimulatedDevice


class QueuedDevice(SimulatedDevice):
    """seed: for those that run by themselves."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(seed)
