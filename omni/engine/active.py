"""A request at the stages of an engine, and the checks before it gets there."""

from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass, field

from omni.engine.credit import Credit
from omni.engine.request import EngineRequest, SafeSink
from omni.engine.route import InRoute, OutRoute
from omni.engine.user_route import UserRoute
from omni.errors import InputError, StageError
from omni.pipeline import Pipeline
from omni.stage import Done


@dataclass(frozen=True, slots=True)
class ActiveRequest:
    """A request at the stages of this engine.

    running: stages that have not finished it. awaited: those of them with a wanted output.

    outs, ins: the halves of its routes that are here, by edge. credits: by producing stage. given: its routes to the user, by
    modality. ending: stages whose end is reported when their routes to the user have finished. rates: of the sound that its stages
    have given, in Hz.
    """

    request: EngineRequest
    sink: SafeSink
    _: KW_ONLY
    running: set[str]
    awaited: set[str]
    outs: dict[str, OutRoute] = field(default_factory=dict)
    ins: dict[str, InRoute] = field(default_factory=dict)
    credits: dict[str, Credit] = field(default_factory=dict)
    given: dict[str, UserRoute] = field(default_factory=dict)
    ending: dict[str, Done] = field(default_factory=dict)
    rates: dict[str, int] = field(default_factory=dict)

    def given_by(self, stage: str) -> list[UserRoute]:
        return [route for route in self.given.values() if route.stage == stage]

    def abort_routes(self, reason: str) -> None:
        for out in self.outs.values():
            out.abort(reason)
        for arriving in self.ins.values():
            arriving.abort()
        for route in self.given.values():
            route.abort(reason)
        for credit in self.credits.values():
            credit.close()

    def needs(self, place: str) -> str | None:
        """A stage in the engine on `place` to which this part of the request still sends, or from which it still receives."""
        ends = [(out.edge.consumer, out.closed) for out in self.outs.values()]
        ends += [(arriving.edge.producer, arriving.closed) for arriving in self.ins.values()]
        return next((stage for stage, closed in ends if not closed and self.request.places.get(stage) == place), None)


def check_names(pipeline: Pipeline, request: EngineRequest) -> None:
    """Raises InputError for modalities, stages and edges that the pipeline does not have."""
    stages = {stage.name for stage in pipeline.stages}
    for what, names, known in (
        ("modalities", request.modalities, {output.modality for output in pipeline.outputs}),
        ("inputs", request.inputs, stages),
        ("sampling", request.sampling, stages),
        ("rules", request.rules, stages),
        ("edges", request.edges, {edge.name for edge in pipeline.edges}),
    ):
        for name in names:
            if name not in known:
                raise InputError(what, f"the pipeline has no {name!r}", f"use one of {', '.join(sorted(known))}")


def stages_of(
    pipeline: Pipeline, request: EngineRequest, own: Collection[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """The stages of the request in all engines, and those with a wanted output of this one, whose stages are `own`."""
    wanted = frozenset(o.stage for o in pipeline.outputs if o.modality in request.modalities)
    if request.places:
        return frozenset(request.places), wanted.intersection(own)
    stages = pipeline.active(request.modalities, request.inputs)
    if not wanted or not wanted <= stages:
        raise StageError("pipeline", "routing the request", "no stage that it feeds leads to a wanted output")
    return stages, wanted
