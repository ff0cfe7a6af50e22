"""Passes on what a stage produces: over its edges, and to the user."""

from collections.abc import Mapping

from omni.engine.active import ActiveRequest
from omni.engine.produced import AUDIO, check_produced, check_sound
from omni.engine.request import StageOutput
from omni.engine.route import BusyRoutes
from omni.engine.stage_order import sound_stages
from omni.engine.values import check_tokens, give
from omni.errors import StageError
from omni.payload import AudioChunk, GeneratedTokens, RequestHiddenStates
from omni.pipeline import Pipeline
from omni.stage import Listeners, Produced, StageWorker


class Forwarder:
    """Sends a payload over every edge of its stage whose consumer still runs, and gives it to the wanted outputs of the stage.
    Reports sound, and payloads that will become sound, to the listeners."""

    def __init__(
        self, pipeline: Pipeline, workers: Mapping[str, StageWorker], routes: BusyRoutes, listeners: Listeners
    ) -> None:
        """workers: of the stages on this engine's place."""
        self._outputs = pipeline.outputs
        self._edges_from = {stage.name: pipeline.edges_from(stage.name) for stage in pipeline.stages}
        self._workers = workers
        self._routes = routes
        self._listeners = listeners
        near = sound_stages(pipeline)
        self._edges_to_sound = {e.name for e in pipeline.edges if e.consumer in near and e.producer not in near}

    def forward(self, active: ActiveRequest, stage: str, produced: Produced) -> None:
        """Raises StageError, and what a value of the worker raises when it is read."""
        try:
            check_produced(stage, produced, self._workers[stage])
            meta = produced.payload.meta
            if isinstance(meta, GeneratedTokens):
                check_tokens(stage, meta, type(self._workers[stage]))
            hidden = isinstance(meta, RequestHiddenStates)
            for edge in self._edges_from[stage] if not produced.for_user else ():
                route = active.outs.get(edge.name)
                if route is not None and not route.closed and (edge.hidden_states or not hidden):
                    route.send(produced)
                    self._routes.add_out(route)
                    if edge.name in self._edges_to_sound:
                        self._listeners.approach(active.request.id)
            taken = self._give(active, stage, produced, hidden)
        finally:
            produced.close()
        if produced.for_user and produced.payload.tensors and not taken:
            problem = f"a {type(produced.payload.meta).__name__} has tensors, and no output of the stage takes them"
            raise StageError(stage, "giving an output to the user", f"{problem}: set PipelineOutput.adapter")

    def _give(self, active: ActiveRequest, stage: str, produced: Produced, hidden: bool) -> bool:
        """Gives a payload to the wanted outputs of its stage. Returns whether one took its tensors."""
        taken = False
        for output in self._outputs:
            if output.stage != stage or output.modality not in active.request.modalities:
                continue
            route = active.given.get(output.modality)
            if route is not None:
                if output.hidden_states == hidden:
                    route.send(produced)
                    self._routes.add_user(route)
                    taken = True
            elif not produced.payload.tensors:
                check_sound(
                    active.rates,
                    output.modality,
                    stage,
                    produced,
                    self._workers[stage],
                    onward=bool(self._edges_from[stage]),
                )
                given = StageOutput(output.modality, produced.payload.meta)
                if isinstance(given.meta, GeneratedTokens):  # checked for all its consumers
                    active.sink.give(given)
                else:
                    give(active.sink, given, stage, type(self._workers[stage]))
                    if output.modality == AUDIO and isinstance(given.meta, AudioChunk):
                        self.hear(active.request.id, given.meta)
        return taken

    def hear(self, request_id: str, chunk: AudioChunk) -> None:
        self._listeners.hear(request_id, len(chunk.samples) / chunk.sample_rate)
