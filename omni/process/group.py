"""Engines in processes of their own, one for each place: splits requests among them."""

import itertools
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from omni.engine import (
    EngineOptions,
    EngineOutput,
    EngineRequest,
    RequestFailed,
    RequestFinished,
    Sink,
    StageFinished,
    StageMemory,
    StageOutput,
    StartReport,
)
from omni.engine.engine import LANE
from omni.engine.faults import closed_after_error
from omni.engine.request import SafeSink
from omni.errors import LostPeerError, OmniError, StageError, fresh
from omni.frontend.vocabulary import Vocabulary
from omni.pipeline import Pipeline
from omni.plugin.manager import Plugins
from omni.process.child import EngineProcess
from omni.process.start_group import PlacedEngine
from omni.process.supervisor import EngineSupervisor
from omni.process.tracked_request import TrackedRequest
from omni.sampling import SamplingParams
from omni.stage import StageUsage
from omni.timeline.export import write_trace
from omni.timeline.merge import merge
from omni.utils.log import safe_logger

_log = safe_logger(__name__)


class EngineGroup:
    """An `EngineClient` of engines in processes of their own.

    A request runs in the engines of its stages; each gets its part, and they pass payloads to each other. Outputs come from every
    engine directly. The group decides when the request has ended, and ends its parts elsewhere.

    If a process ends, its requests start again from their prompts if the user's process has no output of them yet, and fail with a
    LostPeerError otherwise. The engines' lock guards the collections of requests and their places; a request's own lock orders its
    outputs.
    """

    def __init__(self, early: EngineProcess | None = None) -> None:
        """Starts the first process, unless `early` is it; its imports run while this one reads settings and files."""
        self._supervisor = EngineSupervisor(self._place_waiting, early)
        self._tracked: dict[str, TrackedRequest] = {}
        self._waiting: list[TrackedRequest] = []
        self._numbers = itertools.count(1)
        self.memory: Mapping[str, StageMemory] = {}

    @property
    def pids(self) -> Mapping[str, int]:
        """The ids of the processes, by place."""
        return {place: placed.engine.pid for place, placed in self._supervisor.by_place.items()}

    @property
    def start_reports(self) -> Mapping[str, StartReport]:
        """See `EngineClient.start_reports`."""
        return {place: placed.engine.start_report for place, placed in self._supervisor.by_place.items()}

    @property
    def takes_text_rules(self) -> bool:
        return True

    @property
    def failure(self) -> OmniError | None:
        """See `EngineClient.failure`: a stage is closed, or not started again, in all of its engines."""
        if self._supervisor.closing.is_set():
            return _closed()
        with self._supervisor.lock:
            for stage in self._pipeline.stages:
                failures = [_failure_of(placed, stage.name) for placed in self._supervisor.of_stage(stage.name)]
                if None not in failures:
                    return failures[0]
        return None

    @property
    def interruption(self) -> OmniError | None:
        """See `EngineClient.interruption`."""
        with self._supervisor.lock:
            for stage in self._pipeline.stages:
                engines = self._supervisor.of_stage(stage.name)
                if not any(placed.up for placed in engines):
                    lost = engines[0].lost or engines[0].failure
                    return fresh(lost) if lost is not None else StageError(stage.name, "running", "it is being started")
        return None

    def load(self, checkpoint: str, pipeline: Pipeline, plugins: Plugins, options: EngineOptions) -> None:
        """Has the processes load a checked pipeline. Returns at once; `ready` waits for it. They wait for `set_vocabulary`."""
        self._pipeline, self._options = pipeline, options
        self._placement = self._supervisor.load(checkpoint, pipeline, plugins, options)

    def set_vocabulary(self, vocabulary: Vocabulary | None) -> None:
        """Gives the front end's vocabulary to the processes, for rules about text."""
        self._supervisor.set_vocabulary(vocabulary)

    def ready(self) -> None:
        """Waits until all stages are loaded and the engines are connected. Raises the first error, with the type and text that
        it has in its process."""
        self._supervisor.ready()
        self.memory = {
            stage: placed.engine.memory[stage]
            for stage in self._placement.stages
            for placed in self._supervisor.of_stage(stage)
        }

    def start(self) -> None:
        """No effect: the engines run."""

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """See `Engine.submit`."""
        tracked = TrackedRequest(request, SafeSink(request.id, sink))
        with self._supervisor.lock:
            if request.id in self._tracked:
                raise AssertionError(f"request id {request.id!r} is in use")
            self._tracked[request.id] = tracked
        self._place(tracked)

    def abort(self, request_id: str, error: OmniError) -> None:
        """See `Engine.abort`. The caller may hold a lock that the request's sink takes, so the sink is called elsewhere."""
        with self._supervisor.lock:
            tracked = self._tracked.get(request_id)
            if tracked is None or tracked.aborted is not None:
                return
            tracked.aborted = error
            waits = tracked in self._waiting
            if waits:
                self._waiting.remove(tracked)
            for place in list(tracked.parts):
                self._supervisor.by_place[place].engine.abort(tracked.part_id, error, tracked.number)
        if waits:
            ending = (tracked, RequestFailed(error))
            threading.Thread(target=self._finish, args=ending, name="omni-abort", daemon=True).start()

    def check(self, sampling: Mapping[str, SamplingParams], fields: Mapping[str, str]) -> None:
        """See `Engine.check`. Raises StageError if the engine of a stage cannot be started again. While it is being
        started again nothing is checked here: the engine checks the request when it comes."""
        asked: dict[str, dict[str, SamplingParams]] = {}
        for stage, params in sampling.items():
            with self._supervisor.lock:
                engines = self._supervisor.of_stage(stage)
                up = next((placed for placed in engines if placed.up), None)
                failure = None if any(placed.failure is None for placed in engines) else engines[0].failure
            if failure is not None:
                raise fresh(failure)
            if up is not None:
                asked.setdefault(up.place, {})[stage] = params
        for place, own in asked.items():
            with suppress(LostPeerError):
                self._supervisor.by_place[place].engine.check(own, {stage: fields[stage] for stage in own})

    def longest_prompt(self, stage: str) -> int | None:
        """See `Engine.longest_prompt`."""
        return self._supervisor.of_stage(stage)[0].engine.longest_prompt(stage)

    def usage(self) -> Mapping[str, StageUsage]:
        """See `Engine.usage`. The usage of replicas is added up. A stage that is cut across engines has the usage of rank 0."""
        return _sums(self._led(placed, placed.engine.usage()) for placed in self._supervisor.by_place.values())

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """See `Engine.counters`. Those of replicas are added up. An engine that was started again counts from 0. The counters of a
        stage that is cut across engines are those of rank 0."""
        return _sums(self._led(placed, placed.engine.counters()) for placed in self._supervisor.by_place.values())

    def _led(self, placed: PlacedEngine, numbers: Mapping[str, Mapping[str, int]]) -> Mapping[str, Mapping[str, int]]:
        """Without stages in which the engine has another rank than 0."""
        followed = self._placement.followed(placed.place)
        return {stage: counts for stage, counts in numbers.items() if stage not in followed}

    @property
    def idle(self) -> bool:
        """See `Engine.idle`."""
        return not self._tracked and all(placed.engine.idle for placed in self._supervisor.by_place.values())

    def close(self) -> None:
        """See `Engine.close`. The processes have exited when this returns."""
        self._supervisor.stop()
        with self._supervisor.lock:
            waiting, self._waiting = self._waiting, []
        for tracked in waiting:
            self._finish(tracked, RequestFailed(_closed()))
        try:
            self._supervisor.close()
        except Exception:
            self._write_timeline()
            raise
        self._write_timeline()

    def kill(self) -> None:
        """Ends the processes of a model that could not be loaded."""
        self._supervisor.kill()

    # Requests.

    def _place(self, tracked: TrackedRequest) -> None:
        """Sends a request to its engines; it waits if one of them is being started again."""
        with tracked.lock:
            with self._supervisor.lock:
                failure = None if tracked.finished else tracked.aborted or self._send(tracked)
            if failure is not None:
                self._finish(tracked, RequestFailed(failure))

    def _send(self, tracked: TrackedRequest) -> OmniError | None:
        """Under the lock, so that requests reach every engine in the order of their numbers. Returns why it cannot run."""
        request = tracked.request
        stages = self._pipeline.active(request.modalities, request.inputs)
        everything = self._supervisor.by_place
        load = {place: placed.engine.requests + 2**32 * (not placed.up) for place, placed in everything.items()}
        closed = {place: placed.engine.closed_stages for place, placed in everything.items()}
        places = self._placement.place_request(self._pipeline, stages, load, closed)
        # Without a stage, the engine reports the error of the request.
        engines = [everything[place] for place in dict.fromkeys(places.values())] or list(everything.values())[:1]
        failure = next((placed.failure for placed in engines if placed.failure is not None), None)
        if failure is not None:
            return fresh(failure)
        if self._supervisor.closing.is_set():
            return _closed()
        if not all(placed.up for placed in engines):
            self._waiting.append(tracked)
            return None
        tracked.number, tracked.lost = next(self._numbers), None
        tracked.places = places if len(engines) > 1 else {}
        wanted = {output.stage for output in self._pipeline.outputs if output.modality in request.modalities}
        tracked.awaited = wanted if tracked.places else set()
        # All of them: if one cannot be sent, the others' engines drop their parts.
        tracked.parts = {placed.place for placed in engines}
        for placed in engines:
            part, take = self._part(tracked, placed.place), partial(self._take, tracked, tracked.attempt, placed.place)
            error = placed.engine.submit(part, take)
            if error is not None:
                return error
        return None

    def _part(self, tracked: TrackedRequest, place: str) -> EngineRequest:
        """The request for the engine on a place."""
        request, places = tracked.request, tracked.places
        return replace(
            request,
            id=tracked.part_id,
            inputs={stage: given for stage, given in request.inputs.items() if places.get(stage, place) == place},
            text_rules={s: given for s, given in request.text_rules.items() if places.get(s, place) == place},
            number=tracked.number,
            places=places,
        )

    def _take(self, tracked: TrackedRequest, attempt: int, place: str, output: EngineOutput) -> None:
        """An output of a part, on the listener of its engine."""
        lost: LostPeerError | None = None
        with tracked.lock:
            if tracked.finished or attempt != tracked.attempt:
                return
            match output:
                case StageOutput():
                    tracked.started = True
                    tracked.sink.give(output)
                case StageFinished():
                    tracked.started = True
                    tracked.sink.give(output)
                    tracked.awaited.discard(output.stage)
                    if tracked.places and not tracked.awaited and not tracked.complete:
                        # Its other engines may still have ends of stages to report: each reports them before it ends its part.
                        tracked.complete = True
                        self._abort_parts(tracked, StageError("engine", "ending a request", "its outputs were given"))
                case RequestFinished() | RequestFailed() if tracked.complete:
                    tracked.parts.discard(place)
                    if not tracked.parts:
                        self._finish(tracked, RequestFinished())
                case RequestFinished():
                    tracked.parts.discard(place)
                    if tracked.lost is not None:
                        lost = tracked.lost
                        self._lose(tracked, place, lost)
                    elif not tracked.parts:
                        self._finish(tracked, output)
                case RequestFailed(LostPeerError() as lost):
                    tracked.parts.discard(place)
                    self._lose(tracked, place, lost)
                case RequestFailed():
                    tracked.parts.discard(place)
                    self._finish(tracked, output)
            again = tracked.attempt > attempt
        if again:
            # Without the lock: a log handler may ask the engines, whose listeners take it.
            _log.warning("request %s starts again: %s", tracked.request.id, lost)

    def _lose(self, tracked: TrackedRequest, place: str, error: LostPeerError) -> None:
        """Starts a request again that lost an engine, if none of its output was given to the user. place: of the reporting engine.
        Its report about another engine is provisional until that engine's own end is reported, with the reason.
        """
        if tracked.places.get(error.stage, place) in tracked.parts:
            tracked.lost = error
            return
        final = tracked.started or tracked.attempt >= self._retries or self._supervisor.closing.is_set()
        if final or tracked.aborted is not None:
            self._finish(tracked, RequestFailed(tracked.aborted or error))
            return
        self._end_parts(tracked, error)
        tracked.attempt += 1
        self._place(tracked)

    @property
    def _retries(self) -> int:
        """How often a request starts again: even if a request ends the process each time, a restart is left for the others."""
        restarts = self._options.restarts
        return restarts - 1 if restarts > 1 else restarts

    def _finish(self, tracked: TrackedRequest, output: RequestFinished | RequestFailed) -> None:
        with tracked.lock:
            if tracked.finished:
                return
            tracked.finished = True
            error = output.error if isinstance(output, RequestFailed) else None
            self._end_parts(tracked, error or StageError("engine", "ending a request", "its outputs were given"))
            with self._supervisor.lock:
                self._tracked.pop(tracked.request.id, None)
        tracked.sink.finish(output)

    def _end_parts(self, tracked: TrackedRequest, error: OmniError) -> None:
        self._abort_parts(tracked, error)
        tracked.parts = set()

    def _abort_parts(self, tracked: TrackedRequest, error: OmniError) -> None:
        for place in list(tracked.parts):
            self._supervisor.by_place[place].engine.abort(tracked.part_id, error, tracked.number)

    def _place_waiting(self) -> None:
        with self._supervisor.lock:
            waiting, self._waiting = self._waiting, []
        for tracked in waiting:
            self._place(tracked)

    def _write_timeline(self) -> None:
        """Writes the timelines of the engines as one file, once. Raises InputError if it cannot be written."""
        engines = {place: placed.engine for place, placed in self._supervisor.by_place.items()}
        traces = {place: engine.timeline for place, engine in engines.items() if engine.timeline is not None}
        for engine in engines.values():
            engine.timeline = None
        if traces:
            assert self._options.timeline is not None
            only = next(iter(traces.values()))
            write_trace(merge(traces, LANE) if len(engines) > 1 else only, self._options.timeline)


def _failure_of(placed: PlacedEngine, stage: str) -> StageError | None:
    if placed.failure is not None:
        return fresh(placed.failure)
    return closed_after_error(stage) if stage in placed.engine.closed_stages else None


def _closed() -> StageError:
    return StageError("engine", "closing", "the engine was closed")


def _sums(parts: Iterator[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    sums: dict[str, dict[str, int]] = {}
    for part in parts:
        for stage, counts in part.items():
            into = sums.setdefault(stage, {})
            for name, count in counts.items():
                into[name] = into.get(name, 0) + count
    return sums
