"""Takes the messages of stages: payloads go over edges and to the user, ends and failures to the orchestrator."""

from collections.abc import Callable, Mapping

from omni.engine.active import ActiveRequest
from omni.engine.faults import Mailbox, StageFault, checked_message
from omni.engine.produced import AUDIO, check_produced, check_sound
from omni.engine.request import StageOutput
from omni.engine.route import BusyRoutes
from omni.engine.stage_order import edges_to_sound
from omni.engine.values import check_tokens, give
from omni.errors import OmniError, ReturnedError, StageError, as_omni_error
from omni.payload import AudioChunk, GeneratedTokens, RequestHiddenStates
from omni.pipeline import Pipeline
from omni.stage import Done, Failed, Listeners, Outbound, Produced, StageWorker
from omni.utils.interrupts import is_interrupt

_DOING: dict[type[Outbound], str] = {
    Produced: "giving an output",
    Done: "ending a request",
    Failed: "failing a request",
}


class Forwarder:
    """Empties the outboxes. Sends a payload over every edge of its stage whose consumer still runs, and gives it to the wanted
    outputs of the stage. Reports sound, and payloads that will become sound, to the listeners."""

    def __init__(
        self,
        pipeline: Pipeline,
        workers: Mapping[str, StageWorker],
        mailboxes: Mapping[str, Mailbox],
        active: Mapping[str, ActiveRequest],
        routes: BusyRoutes,
        listeners: Listeners,
        *,
        finish: Callable[[ActiveRequest, str, Done], None],
        abort: Callable[[str, OmniError], None],
    ) -> None:
        """workers, mailboxes: one of each for every stage on this engine's place. active: requests by id. finish: called when a
        stage has finished a request. abort: called with a failed request's id."""
        self._outputs = pipeline.outputs
        self._edges_from = {stage.name: pipeline.edges_from(stage.name) for stage in pipeline.stages}
        self._workers = workers
        self._mailboxes = mailboxes
        self._active = active
        self._finish = finish
        self._abort = abort
        self._routes = routes
        self._listeners = listeners
        self._edges_to_sound = edges_to_sound(pipeline)

    def empty_outboxes(self) -> bool:
        """Returns whether there were messages. Raises StageFault for a message that a stage must not send, for one of an unknown
        request, and for any exception: messages are objects of the worker, and reading them may raise."""
        moved = False
        for stage, mailbox in self._mailboxes.items():
            if mailbox.outbox:
                self._empty(stage, mailbox)
                moved = True
        return moved

    def _empty(self, stage: str, mailbox: Mailbox) -> None:
        try:
            while mailbox.outbox:
                self._take(stage, checked_message(mailbox.outbox.popleft(), self._workers[stage]))
        except StageFault:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise StageFault(stage, error) from error

    def _take(self, stage: str, message: Outbound) -> None:
        active = self._active.get(message.request_id)
        if active is None:
            if isinstance(message, Produced):
                message.close()
            return
        try:
            if stage not in active.running and not isinstance(message, Failed):
                problem = f"a {type(message).__name__} for a request that is finished or unknown at this stage"
                raise as_omni_error(stage, "running", ReturnedError(problem, type(self._workers[stage])))
            match message:
                case Produced():
                    self._forward(active, stage, message)
                case Done():
                    self._finish(active, stage, message)
                case Failed():
                    active.running.discard(stage)
                    self._abort(message.request_id, as_omni_error(stage, "running", message.error))
        except BaseException as error:  # includes exceptions that values of the worker raise when they are read
            if is_interrupt(error):
                raise
            doing = _DOING.get(type(message), "taking a message")
            self._abort(active.request.id, as_omni_error(stage, doing, error, type(self._workers[stage])))

    def _forward(self, active: ActiveRequest, stage: str, produced: Produced) -> None:
        """Raises StageError, and the errors of reading a worker's value."""
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
                        self._listeners.reach_sound_stages(active.request.id)
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
                        self.report_sound(active.request.id, given.meta)
        return taken

    def report_sound(self, request_id: str, chunk: AudioChunk) -> None:
        self._listeners.add_sound(request_id, len(chunk.samples) / chunk.sample_rate)
