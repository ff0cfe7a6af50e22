"""The places of a model and their engines: loads them, connects them, and starts one again whose process ended."""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from omni.engine import EngineOptions, Placement, device_of
from omni.engine.memory import DeviceShare
from omni.errors import LostPeerError, StageError, said
from omni.ipc import Channel
from omni.pipeline import Pipeline
from omni.plugin.manager import Plugins
from omni.process.child import EngineProcess
from omni.process.messages import Start
from omni.process.remote import RemoteEngine
from omni.process.select import threads_of

_log = logging.getLogger(__name__)

_STEADY_SECONDS = 60.0
"""An engine that ran this long before its process ended is given all its restarts again."""


@dataclass(slots=True, eq=False)
class PlacedEngine:
    """A place and its engine. engine: the present one, or the last. up: whether it takes requests. since: of the engine.

    lost: why it does not run. failure: why it never will again. coming: the engine that is being loaded in its place.
    """

    place: str
    stages: tuple[str, ...]
    share: DeviceShare
    engine: RemoteEngine
    up: bool = False
    since: float = 0.0
    restarts: int = 0
    restarting: bool = False
    lost: StageError | None = None
    failure: StageError | None = None
    coming: RemoteEngine | None = None


class PlacedEngines:
    """All places. `lock` guards their engines; no sink is called under it."""

    def __init__(self, on_change: Callable[[], None], early: EngineProcess | None = None) -> None:
        """Starts the first process, unless it runs already: it imports what it needs while this one reads settings and files.

        on_change: called when an engine runs again, or never will. early: the first process.
        """
        self._early: RemoteEngine | None = RemoteEngine(early)
        self._on_change = on_change
        self._joining = threading.Lock()
        """One engine at a time is connected to the others, so that two that start at once find each other."""
        self._restarting: list[threading.Thread] = []
        self.by_place: dict[str, PlacedEngine] = {}
        self.lock = threading.RLock()
        self.closing = threading.Event()

    def load(self, checkpoint: str, pipeline: Pipeline, plugins: Plugins, options: EngineOptions) -> Placement:
        """Has the processes load their stages. Returns at once; `ready` waits for it."""
        assert options.device is not None, "the caller chose it"
        self._pipeline, self._options = pipeline, options
        self._placement = Placement.of(pipeline, options.device)
        self._start_of = partial(Start.of, checkpoint=checkpoint, pipeline=pipeline, plugins=plugins, options=options)
        devices = [device_of(place) for place in self._placement.places]
        for index, place in enumerate(self._placement.places):
            device = devices[index]
            share = DeviceShare(devices[:index].count(device), devices.count(device))
            stages = tuple(stage.name for stage in pipeline.order() if place in self._placement.stages[stage.name])
            engine, self._early = self._early or RemoteEngine(), None
            self.by_place[place] = PlacedEngine(place, stages, share, engine)
        for placed in self.by_place.values():
            if not placed.share.index:
                self._load(placed, placed.engine)
        return self._placement

    def ready(self) -> None:
        """Waits until all stages are loaded and the engines are connected. Raises the first error, with the type and text that
        it has in its process."""
        for index in range(max(placed.share.engines for placed in self.by_place.values())):
            engines = [placed for placed in self.by_place.values() if placed.share.index == index]
            for placed in engines if index else ():
                self._load(placed, placed.engine)
            for placed in engines:
                placed.engine.ready()
        with self._joining:
            for placed in self.by_place.values():
                self._start(placed, placed.engine)
            for first, second in self._neighbours():
                if not self._connect(first, second):
                    raise LostPeerError(", ".join(second.stages), "connecting", "its process has ended")
            for placed in self.by_place.values():
                self._open(placed)

    def of_stage(self, stage: str) -> list[PlacedEngine]:
        return [self.by_place[place] for place in self._placement.stages[stage]]

    def stop(self) -> None:
        """Starts no engine any more."""
        self.closing.set()
        with self.lock:
            coming = [placed.coming for placed in self.by_place.values() if placed.coming is not None]
        for engine in coming:
            engine.give_up()
        for thread in list(self._restarting):
            thread.join()

    def close(self) -> None:
        """Closes all engines, even after errors; the first is raised. The processes have exited when this returns."""
        first: BaseException | None = None
        for step in (*(placed.engine.close for placed in self.by_place.values()), self._kill_early):
            try:
                step()
            except Exception as error:
                if first is None:
                    first = error
                else:
                    _log.error("a further engine could not be closed", exc_info=error)
        if first is not None:
            raise first

    def kill(self) -> None:
        """Ends the processes of a model that could not be loaded."""
        self.stop()
        with suppress(Exception):  # the error of the load has the cause
            self.close()

    def _load(self, placed: PlacedEngine, engine: RemoteEngine) -> None:
        threads = threads_of(placed.place, list(self.by_place))
        start = self._start_of(place=placed.place, share=placed.share, threads=threads)
        engine.load(start, placed.stages)

    def _start(self, placed: PlacedEngine, engine: RemoteEngine) -> None:
        with self.lock:
            placed.engine, placed.lost, placed.since = engine, None, time.monotonic()
        engine.start(partial(self._died, placed, engine), partial(self._unlinked, placed, engine))

    def _open(self, placed: PlacedEngine) -> None:
        """Marks the engine as accepting requests, unless it has ended since its start."""
        with self.lock:
            placed.up = placed.lost is None

    def _neighbours(self) -> Iterator[tuple[PlacedEngine, PlacedEngine]]:
        """Pairs of places with an edge between them."""
        pairs = {pair for edge in self._pipeline.edges for pair in self._placement.pairs(edge)}
        for first, second in itertools.combinations(self.by_place.values(), 2):
            if {(first.place, second.place), (second.place, first.place)} & pairs:
                yield first, second

    def _connect(self, first: PlacedEngine, second: PlacedEngine) -> bool:
        """False if the second one has ended. Raises the error of either engine."""
        ends = Channel.pair()
        asked = [first.engine.connect(second.place, ends[0]), second.engine.connect(first.place, ends[1])]
        answers = [each.result() for each in asked]
        if answers[0] is None:
            raise LostPeerError(", ".join(first.stages), "connecting", "its process has ended")
        if answers[1] is None:
            return False
        for answer in answers:
            if answer is not None and answer.error is not None:
                raise answer.error.rebuild("connecting")
        return True

    # Restarts.

    def _died(self, placed: PlacedEngine, engine: RemoteEngine, error: StageError) -> None:
        """On the listener of the engine, before its requests fail."""
        with self.lock:
            if placed.engine is not engine or self.closing.is_set():
                return
            placed.up, placed.lost = False, error
            if time.monotonic() - placed.since >= _STEADY_SECONDS:
                placed.restarts = 0
            if placed.restarting:
                return  # the thread that started this engine sees that it is lost
            placed.restarting = True
            thread = threading.Thread(
                target=self._restart, args=(placed,), name=f"omni-restart-{placed.place}", daemon=True
            )
            self._restarting.append(thread)
            thread.start()

    def _unlinked(self, placed: PlacedEngine, engine: RemoteEngine, place: str) -> None:
        """On the listener of the engine, before its requests fail: its connection to another one has ended. As a rule the
        process of that one has. One that runs is ended, and so started again: it may still read memory of the lost
        connection."""
        other = self.by_place[place]
        with self.lock:
            gone = placed.engine is not engine or placed.lost is not None or other.lost is not None
            if gone or self.closing.is_set():
                return
            ended, problem = other.engine, f"its connection to {placed.place} has ended"
            other.up, other.lost = False, LostPeerError(", ".join(other.stages), "running", problem)
        _log.warning("%s: %s; its process is started again", other.place, problem)
        ended.give_up()

    def _restart(self, placed: PlacedEngine) -> None:
        while (error := self._lost(placed)) is not None:
            delay = self._options.restart_seconds * 2**placed.restarts
            placed.restarts += 1
            _log.warning("%s: %s; it is started again in %.1f s", placed.place, error, delay)
            if self.closing.wait(delay):
                continue
            try:
                self._replace(placed)
            except Exception as failure:  # the next try, or the last error, says so
                again = StageError(", ".join(placed.stages), "starting its process again", said(failure))
                with self.lock:
                    placed.lost = failure if isinstance(failure, StageError) else again
        self._on_change()

    def _lost(self, placed: PlacedEngine) -> StageError | None:
        """The error of an engine that is to be started again; None if it runs, or never will again: then the thread ends."""
        with self.lock:
            lost, final = placed.lost, placed.restarts >= self._options.restarts
            if lost is not None and not final and not self.closing.is_set():
                return lost
            if lost is not None and final:
                times = f"it was started again {placed.restarts} times; " if placed.restarts else ""
                placed.failure = StageError(lost.stage, lost.doing, f"{lost.problem}; {times}load the model again")
                _log.error("%s: %s", placed.place, placed.failure)
            placed.restarting = False
            self._restarting.remove(threading.current_thread())
            return None

    def _replace(self, placed: PlacedEngine) -> None:
        engine = RemoteEngine()
        same = [each for each in self.by_place.values() if device_of(each.place) == device_of(placed.place)]
        with self.lock:
            placed.coming = engine  # `stop` ends it from now on
            # The engines that run hold their parts of the device already.
            placed.share = DeviceShare(sum(each.up for each in same), len(same))
            if self.closing.is_set():
                engine.give_up()
        try:
            self._load(placed, engine)
            engine.ready()
        except BaseException:
            engine.kill()
            raise
        finally:
            with self.lock:
                placed.coming = None
        with self._joining:
            self._start(placed, engine)
            try:
                for first, second in self._neighbours():
                    other = second if first is placed else first
                    if placed in (first, second) and other.up:
                        # One that has ended meanwhile is connected when it is started again.
                        self._connect(placed, other)
            except BaseException:
                with suppress(Exception):
                    engine.close()
                raise
            self._open(placed)

    def _kill_early(self) -> None:
        early, self._early = self._early, None
        if early is not None:
            early.kill()
