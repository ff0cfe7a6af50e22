"""Conformance suites, guards and the simulated device, for the tests of plugins."""

from omni.testing.connectors import check_connector
from omni.testing.launch_guard import LaunchGuard
from omni.testing.retries import no_retries, planted_faults
from omni.testing.simulation.checker import Race
from omni.testing.simulation.device import SimulatedDevice
from omni.testing.simulation.simulation import HangError, Simulation
from omni.testing.simulation.waits import find_waits

__all__ = [
    "HangError",
    "LaunchGuard",
    "Race",
    "SimulatedDevice",
    "Simulation",
    "check_connector",
    "find_waits",
    "no_retries",
    "planted_faults",
]
