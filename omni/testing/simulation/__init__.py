"""The simulated device: streams that run late and in any order, and a check of every memory access."""

from omni.testing.simulation.checker import Access, Race
from omni.testing.simulation.device import SimulatedDevice
from omni.testing.simulation.simulation import HangError, Simulation
from omni.testing.simulation.stream import SimulatedEvent, SimulatedStream
from omni.testing.simulation.waits import WaitCount, find_waits

__all__ = [
    "Access",
    "HangError",
    "Race",
    "SimulatedDevice",
    "SimulatedEvent",
    "SimulatedStream",
    "Simulation",
    "WaitCount",
    "find_waits",
]
