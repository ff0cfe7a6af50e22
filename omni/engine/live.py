"""A request that is at the stages."""

from collections.abc import Mapping
from dataclasses import dataclass

from omni.engine.credit import Valve
from omni.engine.outlet import Outlet
from omni.engine.request import EngineRequest
from omni.engine.route import Route


@dataclass(frozen=True, slots=True)
class Live:
    """running: the stages it still has work in. awaited: those of them that give a wanted output.

    routes: by edge. valves: by stage, of those that produce for another.
    """

    request: EngineRequest
    outlet: Outlet
    running: set[str]
    awaited: set[str]
    routes: Mapping[str, Route]
    valves: Mapping[str, Valve]
