"""Engines in processes of their own, one for each place: starts them, splits requests among them, and starts an engine
again whose process ended."""

import itertools
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from omni.engine import (
    EngineOptions,
    EngineOutput,
    EngineRequest,
    Placement,
    RequestFailed,
    RequestFinished,
    Sink,
    StageFinished,
    StageMemory,
    StageOutput,
    device_of,
)
from omni.engine.memory import DeviceShare
from omni.engine.request import SafeSink
from omni.errors import LostPeerError, OmniError, StageError, known
from omni.ipc import Channel
from omni.pipeline import Pipeline
from omni.plugin.manager import Plugins
from omni.process.messages import Start
from omni.process.remote import RemoteEngine
from omni.process.timelines import merge_timelines, part_of
from omni.sampling import SamplingParams
from omni.stage import StageUsage

_log = logging.getLogger(__name__)

_STEADY_SECONDS = 60.0
"""An engine that ran this long before its process ended is given all its restarts again."""
AnswerT = TypeVar("AnswerT")


@dataclass(slots=True)
class _Seat:
    """A place and its engine. engine: the present one, or the last. up: whether it takes requests.

    failure: why it never will again.
    """

    place: str
    stages: tuple[str, ...]
    share: DeviceShare
    engine: RemoteEngine
    up: bool = False
    since: float = 0.0
    restarts: int = 0
    failure: StageError | None = None
    active: int = 0


@dataclass(slots=True, eq=False)
class _Tracked:
    """A request. parts: places whose engines have not ended it. awaited: stages with a wanted output that are not done.

    attempt: its number, from 0; outputs of earlier attempts are dropped. started: whether the user was given an output.
    """

    request: EngineRequest
    sink: SafeSink
    lock: threading.RLock = field(default_factory=threading.RLock)
    number: int = 0
    attempt: int = 0
    parts: set[str] = field(default_factory=set)
    awaited: set[str] = field(default_factory=set)
    started: bool = False
    over: bool = False

    @property
    def part_id(self) -> str:
        return self.request.id if not self.attempt else f"{self.request.id}.{self.attempt}"


class EngineGroup:
    """An `EngineClient` of engines in processes of their own.

    A request runs in the engines of its stages; each gets its part, and they pass payloads to each other. Outputs come
    from every engine directly. The group decides when the request is over, and ends its parts elsewhere.

    If a process ends, requests that used it start again from their prompt if nothing of them was given to the user, and
    fail with a LostPeerError otherwise. `_lock` guards seats and requests; a request's own lock orders its outputs.
    """

    def __init__(self) -> None:
        """Starts the first process, which imports what it needs while this one reads settings and files."""
        self._early: RemoteEngine | None = RemoteEngine()
        self._seats: dict[str, _Seat] = {}
        self._tracked: dict[str, _Tracked] = {}
        self._waiting: list[_Tracked] = []
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._closing = threading.Event()
        self._restarting: list[threading.Thread] = []
        self.memory: Mapping[str, StageMemory] = {}

    @property
    def pids(self) -> Mapping[str, int]:
        """The ids of the processes, by place."""
        return {place: seat.engine.pid for place, seat in self._seats.items()}

    @property
    def takes_text_rules(self) -> bool:
        return True

    def load(self, checkpoint: str, pipeline: Pipeline, plugins: Plugins, options: EngineOptions) -> None:
        """Has the processes load a checked pipeline. Returns at once; `ready` waits for it."""
        assert options.device is not None, "the caller chose it"
        self._pipeline, self._options = pipeline, options
        self._placement = Placement.of(pipeline, options.device)
        self._start_of = partial(Start.of, checkpoint, pipeline, plugins)
        devices = [device_of(place) for place in self._placement.places]
        for index, place in enumerate(self._placement.places):
            device = devices[index]
            share = DeviceShare(devices[:index].count(device), devices.count(device))
            stages = tuple(stage.name for stage in pipeline.order() if place in self._placement.stages[stage.name])
            engine, self._early = self._early or RemoteEngine(), None
            self._seats[place] = _Seat(place, stages, share, engine)
        for seat in self._seats.values():
            if not seat.share.index:
                self._load(seat, seat.engine)

    def ready(self) -> None:
        """Waits until all stages are loaded and the engines are connected. Raises the first error, with the type and text that
        it has in its process."""
        for turn in range(max(seat.share.engines for seat in self._seats.values())):
            seats = [seat for seat in self._seats.values() if seat.share.index == turn]
            for seat in seats if turn else ():
                self._load(seat, seat.engine)
            for seat in seats:
                seat.engine.ready()
        for seat in self._seats.values():
            self._begin(seat)
        for first, second in self._neighbours():
            self._connect(first, second)
        self.memory = {stage: seat.engine.memory[stage] for seat in self._seats.values() for stage in seat.stages}

    def start(self) -> None:
        """No effect: the engines run."""

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """See `Engine.submit`."""
        tracked = _Tracked(request, SafeSink(request.id, sink))
        with self._lock:
            if request.id in self._tracked:
                raise AssertionError(f"request id {request.id!r} is in use")
            self._tracked[request.id] = tracked
        self._place(tracked)

    def abort(self, request_id: str, error: OmniError) -> None:
        """See `Engine.abort`."""
        tracked = self._tracked.get(request_id)
        if tracked is None:
            return
        with self._lock:
            waits = tracked in self._waiting
        if waits:
            self._finish(tracked, RequestFailed(error))
        for place in list(tracked.parts):
            self._seats[place].engine.abort(tracked.part_id, error, tracked.number)

    def check(self, sampling: Mapping[str, SamplingParams], fields: Mapping[str, str]) -> None:
        """See `Engine.check`. Raises LostPeerError if the process of a stage is gone for good. While it is being started again,
        only the stage itself checks, when it opens the request."""
        for seat in self._seats.values():
            own = {stage: params for stage, params in sampling.items() if self._checker(stage) is seat}
            if not own:
                continue
            if seat.failure is not None:
                raise type(seat.failure)(seat.failure.stage, seat.failure.doing, seat.failure.problem)
            with suppress(LostPeerError):
                seat.engine.check(own, {stage: fields[stage] for stage in own})

    def longest_prompt(self, stage: str) -> int | None:
        """See `Engine.longest_prompt`."""
        return self._first(stage).engine.longest_prompt(stage)

    def usage(self) -> Mapping[str, StageUsage]:
        """See `Engine.usage`. Those of replicas are added up."""
        return _sums(seat.engine.usage() for seat in self._seats.values())

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """See `Engine.counters`. Those of replicas are added up. An engine that was started again counts from 0."""
        return _sums(seat.engine.counters() for seat in self._seats.values())

    @property
    def idle(self) -> bool:
        """See `Engine.idle`."""
        return not self._tracked and all(seat.engine.idle for seat in self._seats.values())

    def close(self) -> None:
        """See `Engine.close`. The processes have exited when this returns."""
        self._closing.set()
        for thread in list(self._restarting):
            thread.join()
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for tracked in waiting:
            self._finish(tracked, RequestFailed(StageError("engine", "closing", "the engine was closed")))
        first: BaseException | None = None
        for step in (*(seat.engine.close for seat in self._seats.values()), self._kill_early, self._merge_timelines):
            try:
                step()
            except Exception as error:
                if first is None:
                    first = error
                else:
                    _log.error("a further part of the engine could not be closed", exc_info=error)
        if first is not None:
            raise first

    def kill(self) -> None:
        """Ends the processes of a model that could not be loaded."""
        self._closing.set()
        self._kill_early()
        for seat in self._seats.values():
            with suppress(Exception):  # the error that it could not be loaded for says more
                seat.engine.close()

    # Requests.

    def _place(self, tracked: _Tracked) -> None:
        """Sends a request to its engines; it waits if one of them is being started again."""
        request = tracked.request
        stages = self._pipeline.active(request.modalities, request.inputs)
        with self._lock:
            load = {place: seat.active if seat.up else seat.active + 2**32 for place, seat in self._seats.items()}
            places = self._placement.place_request(self._pipeline, stages, load)
            seats = {place: self._seats[place] for place in dict.fromkeys(places.values())}
            if not seats:  # the engine says what is wrong with the request
                seats = dict(itertools.islice(self._seats.items(), 1))
            failure = next((seat.failure for seat in seats.values() if seat.failure is not None), None)
            if failure is None and self._closing.is_set():
                failure = StageError("engine", "closing", "the engine was closed")
            if failure is None and not all(seat.up for seat in seats.values()):
                self._waiting.append(tracked)
                return
            if failure is None:
                self._send(tracked, seats, places if len(seats) > 1 else {})
        if failure is not None:
            self._finish(tracked, RequestFailed(type(failure)(failure.stage, failure.doing, failure.problem)))

    def _send(self, tracked: _Tracked, seats: Mapping[str, _Seat], places: Mapping[str, str]) -> None:
        """Under the lock, so that requests reach every engine in the order of their numbers."""
        request = tracked.request
        tracked.number = next(self._numbers)
        tracked.parts = set(seats)
        wanted = {output.stage for output in self._pipeline.outputs if output.modality in request.modalities}
        tracked.awaited = wanted if places else set()
        for place, seat in seats.items():
            inputs = {stage: given for stage, given in request.inputs.items() if places.get(stage, place) == place}
            rules = {stage: given for stage, given in request.text_rules.items() if places.get(stage, place) == place}
            part = replace(
                request,
                id=tracked.part_id,
                inputs=inputs,
                text_rules=rules,
                number=tracked.number,
                places=places,
            )
            seat.active += 1
            seat.engine.submit(part, partial(self._take, tracked, tracked.attempt, place))

    def _take(self, tracked: _Tracked, attempt: int, place: str, output: EngineOutput) -> None:
        """An output of a part, on the listener of its engine."""
        if isinstance(output, RequestFinished | RequestFailed):
            with self._lock:
                self._seats[place].active -= 1
        with tracked.lock:
            if tracked.over or attempt != tracked.attempt:
                return
            match output:
                case StageOutput():
                    tracked.started = True
                    tracked.sink.give(output)
                case StageFinished():
                    tracked.started = True
                    tracked.sink.give(output)
                    tracked.awaited.discard(output.stage)
                    if len(tracked.parts) > 1 and not tracked.awaited:
                        self._finish(tracked, output=RequestFinished())
                case RequestFinished():
                    tracked.parts.discard(place)
                    if not tracked.parts:
                        self._finish(tracked, output)
                case RequestFailed(LostPeerError() as error):
                    tracked.parts.discard(place)
                    self._lose(tracked, error)
                case RequestFailed():
                    tracked.parts.discard(place)
                    self._finish(tracked, output)

    def _lose(self, tracked: _Tracked, error: LostPeerError) -> None:
        """Starts a request again that lost an engine, if nothing of it was given out."""
        if tracked.started or tracked.attempt >= self._options.restarts or self._closing.is_set():
            self._finish(tracked, RequestFailed(error))
            return
        self._end_parts(tracked, error)
        tracked.attempt += 1
        _log.warning("request %s starts again: %s", tracked.request.id, error)
        self._place(tracked)

    def _finish(self, tracked: _Tracked, output: RequestFinished | RequestFailed) -> None:
        with tracked.lock:
            if tracked.over:
                return
            tracked.over = True
            error = output.error if isinstance(output, RequestFailed) else None
            self._end_parts(tracked, error or StageError("engine", "ending a request", "its outputs were given"))
        with self._lock:
            self._tracked.pop(tracked.request.id, None)
            if tracked in self._waiting:
                self._waiting.remove(tracked)
        tracked.sink.finish(output)

    def _end_parts(self, tracked: _Tracked, error: OmniError) -> None:
        for place in tracked.parts:
            self._seats[place].engine.abort(tracked.part_id, error, tracked.number)
        tracked.parts = set()

    # Engines.

    def _first(self, stage: str) -> _Seat:
        return self._seats[self._placement.stages[stage][0]]

    def _checker(self, stage: str) -> _Seat:
        """The engine that checks parameters of a stage: the first of its replicas that is up."""
        seats = [self._seats[place] for place in self._placement.stages[stage]]
        return next((seat for seat in seats if seat.up), seats[0])

    def _load(self, seat: _Seat, engine: RemoteEngine) -> None:
        options = self._options
        if options.timeline is not None and len(self._seats) > 1:
            options = part_of(options, seat.place)
        engine.load(self._start_of(options, seat.place, seat.share), seat.stages)

    def _begin(self, seat: _Seat) -> None:
        seat.engine.start(partial(self._died, seat, seat.engine))
        with self._lock:
            seat.up, seat.since = True, time.monotonic()

    def _neighbours(self) -> Iterator[tuple[_Seat, _Seat]]:
        """Pairs of places with an edge between them."""
        pairs = {pair for edge in self._pipeline.edges for pair in self._placement.pairs(edge)}
        for first, second in itertools.combinations(self._seats.values(), 2):
            if {(first.place, second.place), (second.place, first.place)} & pairs:
                yield first, second

    def _connect(self, first: _Seat, second: _Seat) -> None:
        """Raises the error of either engine."""
        ends = Channel.pair()
        asked = [first.engine.connect(second.place, ends[0]), second.engine.connect(first.place, ends[1])]
        for answer in [each.result() for each in asked]:
            if answer is None:
                raise LostPeerError(", ".join(first.stages), "connecting", "a process has ended")
            if answer.error is not None:
                raise answer.error.rebuild("connecting")

    def _died(self, seat: _Seat, engine: RemoteEngine, error: StageError) -> None:
        """On the listener of the engine, before its requests fail."""
        with self._lock:
            if seat.engine is not engine or self._closing.is_set():
                return
            seat.up = False
            if time.monotonic() - seat.since >= _STEADY_SECONDS:
                seat.restarts = 0
            thread = threading.Thread(
                target=self._restart, args=(seat, error), name=f"omni-restart-{seat.place}", daemon=True
            )
            self._restarting.append(thread)
            thread.start()

    def _restart(self, seat: _Seat, error: StageError) -> None:
        try:
            while not self._closing.is_set():
                if seat.restarts >= self._options.restarts:
                    self._give_up(seat, error)
                    return
                delay = self._options.restart_seconds * 2**seat.restarts
                seat.restarts += 1
                _log.warning("%s: %s; it is started again in %.1f s", seat.place, error, delay)
                if self._closing.wait(delay):
                    return
                try:
                    self._replace(seat)
                except Exception as failure:  # the next try, or the last error, says so
                    again = known(", ".join(seat.stages), "starting its process again", failure)
                    error = again if isinstance(again, StageError) else StageError(seat.place, "starting", str(again))
                else:
                    return
        finally:
            with self._lock:
                self._restarting.remove(threading.current_thread())

    def _replace(self, seat: _Seat) -> None:
        engine = RemoteEngine()
        same = [each for each in self._seats.values() if device_of(each.place) == device_of(seat.place)]
        # The engines that run hold their parts of the device already.
        seat.share = DeviceShare(sum(each.up for each in same), len(same))
        try:
            self._load(seat, engine)
            engine.ready()
        except BaseException:
            engine.kill()
            raise
        with self._lock:
            if self._closing.is_set():
                engine.kill()
                return
            seat.engine = engine
            seat.active = 0
        engine.start(partial(self._died, seat, engine))
        for first, second in self._neighbours():
            other = second if first is seat else first
            if seat in (first, second) and other.up:
                self._connect(first, second)
        with self._lock:
            seat.up, seat.since = True, time.monotonic()
        self._place_waiting()

    def _give_up(self, seat: _Seat, error: StageError) -> None:
        problem = f"{error.problem}; it was started again {seat.restarts} times: load the model again"
        with self._lock:
            seat.failure = type(error)(error.stage, error.doing, problem)
        _log.error("%s: %s", seat.place, seat.failure)
        self._place_waiting()

    def _place_waiting(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for tracked in waiting:
            self._place(tracked)

    def _kill_early(self) -> None:
        early, self._early = self._early, None
        if early is not None:
            early.kill()

    def _merge_timelines(self) -> None:
        if self._seats and self._options.timeline is not None and len(self._seats) > 1:
            merge_timelines(self._options, list(self._seats))


def _sums(parts: Iterator[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    sums: dict[str, dict[str, int]] = {}
    for part in parts:
        for stage, counts in part.items():
            into = sums.setdefault(stage, {})
            for name, count in counts.items():
                into[name] = into.get(name, 0) + count
    return sums
