"""A request at the stages of an engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from omni.engine.request import EngineRequest, SafeSink
from omni.engine.route import Credit, InRoute, OutRoute
from omni.engine.user_route import UserRoute
from omni.stage import Done


@dataclass(frozen=True, slots=True)
class ActiveRequest:
    """A request at the stages of this engine.

    running: stages that have not finished it. awaited: those of them with a wanted output.

    outs, ins: the halves of its routes that are here, by edge. credits: by producing stage.
    given: its routes to the user, by modality. ending: stages whose end is reported when their routes to the user are over.
    """

    request: EngineRequest
    sink: SafeSink
    running: set[str]
    awaited: set[str]
    outs: dict[str, OutRoute]
    ins: dict[str, InRoute]
    credits: Mapping[str, Credit]
    given: dict[str, UserRoute] = field(default_factory=dict)
    ending: dict[str, Done] = field(default_factory=dict)

    def given_by(self, stage: str) -> list[UserRoute]:
        return [route for route in self.given.values() if route.stage == stage]
