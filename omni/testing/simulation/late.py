"""Simulated devices that are late."""

from omni.testing.simulation.device import SimulatedDevice
from omni.testing.simulation.stream import SimulatedStream


class QueuedDevice(SimulatedDevice):
    """Without a seed its streams run only when the test runs them, as late as a busy accelerator's."""


class StirredDevice(QueuedDevice):
    """Its streams run late and mixed, a little at each look at an event, as the seed decides."""


_SLOW = 3e-4
"""Mean seconds of a phase: the host launches dozens meanwhile."""


class LateDevice(SimulatedDevice):
    """As late as one that has much to do: the host gets as far ahead as it may."""

    def __init__(self, seed: int, *, check: bool = False) -> None:
        super().__init__(seed, check=check)

    def stream(self, name: str, *, priority: int = 0) -> SimulatedStream:
        stream = super().stream(name, priority=priority)
        stream.pace = max(stream.pace, _SLOW)
        return stream
