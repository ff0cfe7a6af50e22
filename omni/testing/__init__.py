"""Conformance suites, guards and the simulated device, for the tests of plugins."""

from omni.testing.connectors import check_connector
from omni.testing.engines import engine_for
from omni.testing.families import check_family
from omni.testing.launch_guard import LaunchGuard
from omni.testing.retries import no_retries, planted_faults
from omni.testing.simulation.checker import Race
from omni.testing.simulation.device import SimulatedDevice
from omni.testing.simulation.simulation import HangError, Simulation
from omni.testing.simulation.waits import find_waits
from omni.testing.stages import check_stage
from omni.testing.vocoders import check_vocoder

__all__ = [
    "HangError",
    "LaunchGuard",
    "Race",
    "SimulatedDevice",
    "Simulation",
    "check_connector",
    "check_family",
    "check_stage",
    "check_vocoder",
    "engine_for",
    "find_waits",
    "no_retries",
    "planted_faults",
]
