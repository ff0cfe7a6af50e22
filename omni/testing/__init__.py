"""Conformance suites, guards and the simulated device, for the tests of plugins.

Names are imported when first used: the second process of `check_connector` needs no engine, and starts without its imports.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_HOME_OF = {
    "HangError": "simulation.simulation",
    "LaunchGuard": "launch_guard",
    "Race": "simulation.checker",
    "SimulatedDevice": "simulation.device",
    "Simulation": "simulation.simulation",
    "check_connector": "connectors",
    "check_family": "families",
    "check_stage": "stages",
    "check_vocoder": "vocoders",
    "engine_for": "engines",
    "find_waits": "simulation.waits",
    "no_retries": "retries",
    "planted_faults": "retries",
}

# Hidden from type checkers, which would otherwise accept every misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'omni.testing' has no attribute {name!r}")
        value = vars(import_module(f"omni.testing.{_HOME_OF[name]}"))[name]
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
