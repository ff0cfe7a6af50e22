"""The places of a model and their engines: loads and connects the engines, and restarts an engine after its process has ended."""

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import torch

from omni.engine import EngineOptions, Placement, device_of
from omni.engine.memory import DeviceShare
from omni.errors import LostPeerError, StageError, error_text
from omni.frontend.vocabulary import Vocabulary
from omni.ipc import Channel
from omni.pipeline import Pipeline
from omni.plugin.manager import Plugins
from omni.process.child import EngineProcess, working_folder
from omni.process.messages import Start, TextVocabulary
from omni.process.remote import RemoteEngine
from omni.process.rendezvous import join_ranks
from omni.process.select import threads_of
from omni.process.start_group import LOST_RANK_SECONDS, PlacedEngine, StartGroup, rounds_of, wait_ready
from omni.process.stop_watch import STOPPED_SECONDS, StoppedEngineWatch, start_watching
from omni.utils.closing import ClosingSteps
from omni.utils.log import safe_logger

_log = safe_logger(__name__)

_STEADY_SECONDS = 60.0
"""An engine that ran this long before its process ended is given all its restarts again."""


class EngineSupervisor:
    """Keeps the engines of all places. `lock` guards them; no sink is called under it."""

    def __init__(self, on_change: Callable[[], None], early: EngineProcess | None = None) -> None:
        """Starts the first process, unless it runs already: its imports run while this one reads settings and files.

        on_change: called when an engine runs again, or is given up. early: the first process.
        """
        self._early: RemoteEngine | None = RemoteEngine(early)
        # Paths of settings may be relative to it, and the program may change it.
        self._folder = working_folder()
        self._on_change = on_change
        self._joining = threading.Lock()
        """One engine at a time is connected to the others, so that two that start at once find each other."""
        self._restarting: list[threading.Thread] = []
        self._watching: threading.Thread | None = None
        self._groups: list[StartGroup] = []
        self._vocabulary: TextVocabulary | None = None
        self.by_place: dict[str, PlacedEngine] = {}
        self.lock = threading.RLock()
        self._one_died = threading.Condition(self.lock)
        self.closing = threading.Event()

    def load(self, checkpoint: str, pipeline: Pipeline, plugins: Plugins, options: EngineOptions) -> Placement:
        """Has the processes load their stages. Returns at once; `ready` waits for it."""
        assert options.device is not None, "the caller chose it"
        self._pipeline, self._options = pipeline, options
        self._placement = Placement.of(pipeline, options.device)
        self._start_of = partial(Start.of, checkpoint=checkpoint, pipeline=pipeline, plugins=plugins, options=options)
        devices = Counter(map(device_of, self._placement.places))
        earlier: Counter[torch.device] = Counter()
        for places in self._placement.groups:
            group = StartGroup()
            for place in places:
                device, own = device_of(place), self._placement.on(place)
                stages = tuple(stage.name for stage in pipeline.order() if stage.name in own)
                engine, self._early = self._early or self._new_engine(), None
                share = DeviceShare(earlier[device], devices[device])
                self.by_place[place] = PlacedEngine(place, stages, share, engine, group, coming=engine)
                group.engines.append(self.by_place[place])
            self._groups.append(group)
            earlier.update(map(device_of, places))
        self._rounds = rounds_of(self._groups)
        for group in self._rounds[0]:
            self._load(group, [placed.engine for placed in group.engines])
        return self._placement

    def set_vocabulary(self, vocabulary: Vocabulary | None) -> None:
        """Gives the front end's vocabulary to all engines, which wait for it. After `load`."""
        self._vocabulary = TextVocabulary.of(vocabulary)
        for group in self._rounds[0]:
            for placed in group.engines:
                placed.engine.set_vocabulary(self._vocabulary)

    def ready(self) -> None:
        """Waits until all stages are loaded and the engines are connected. Raises the first error, with the type and text that
        it has in its process."""
        watches = [StoppedEngineWatch(partial(self._present, group), STOPPED_SECONDS) for group in self._groups]
        self._watching = start_watching(watches, self.closing)
        for number, groups in enumerate(self._rounds):
            for group in groups if number else ():
                self._load(group, [placed.engine for placed in group.engines])
            wait_ready([placed.engine for group in groups for placed in group.engines])
        with self._joining:
            for placed in self.by_place.values():
                self._start(placed, placed.engine)
            for first, second in self._neighbours():
                if not self._connect(first, second):
                    raise LostPeerError(", ".join(second.stages), "connecting", "its process has ended")
            for group in self._groups:
                self._open(group)

    def _present(self, group: StartGroup) -> list[RemoteEngine]:
        """The engines of a group that run, or are being loaded; none while there is only a part of them."""
        with self.lock:
            if all(placed.up for placed in group.engines):
                return [placed.engine for placed in group.engines]
            coming = [placed.coming for placed in group.engines if placed.coming is not None]
        return coming if len(coming) == len(group.engines) else []

    def of_stage(self, stage: str) -> list[PlacedEngine]:
        """The engines that take requests of the stage."""
        return [self.by_place[place] for place in self._placement.stages[stage]]

    def stop(self) -> None:
        """Prevents further starts of engines."""
        self.closing.set()
        with self.lock:
            self._one_died.notify_all()
            coming = [placed.coming for placed in self.by_place.values() if placed.coming is not None]
        for engine in coming:
            engine.give_up()
        for thread in (*self._restarting, *([self._watching] if self._watching is not None else [])):
            thread.join()

    def close(self) -> None:
        """Closes all engines, even after errors; the first is raised. The processes have exited when this returns."""
        # Rank 0 first: the steps that it has begun need the others.
        engines = [placed for group in self._groups for placed in group.engines]
        steps: list[Callable[[], object]] = [*(partial(self._close, placed) for placed in engines), self._kill_early]
        ClosingSteps(steps, _log, "a further engine").run()

    def _close(self, placed: PlacedEngine) -> None:
        placed.engine.close()
        if placed.engine.hung:
            for other in placed.group.engines:  # their steps wait for it
                other.engine.give_up(
                    f"with {self._placement.rank_names(placed.place)} ({placed.place}), which had not closed"
                )

    def kill(self) -> None:
        """Ends the processes of a model that could not be loaded."""
        self.stop()
        with suppress(Exception):  # the error of the load has the cause
            self.close()

    def _new_engine(self) -> RemoteEngine:
        return RemoteEngine(EngineProcess(folder=self._folder))

    def _load(self, group: StartGroup, engines: Sequence[RemoteEngine]) -> None:
        """engines: the engines of the group, in its order."""
        places = [placed.place for placed in group.engines]
        join_ranks(self._placement, dict(zip(places, engines, strict=True)))
        for placed, engine in zip(group.engines, engines, strict=True):
            threads = threads_of(placed.place, list(self.by_place))
            start = self._start_of(place=placed.place, share=placed.share, threads=threads)
            engine.load(start, placed.stages, self._placement.rank_names(placed.place))
            if self._vocabulary is not None:
                engine.set_vocabulary(self._vocabulary)

    def _start(self, placed: PlacedEngine, engine: RemoteEngine) -> None:
        with self.lock:
            placed.engine, placed.coming, placed.lost, placed.since = engine, None, None, time.monotonic()
        engine.start(partial(self._died, placed, engine), partial(self._unlinked, placed, engine))

    def _open(self, group: StartGroup) -> None:
        """Marks the engines as accepting requests, unless one has ended since its start."""
        with self.lock:
            up = all(placed.lost is None for placed in group.engines)
            for placed in group.engines:
                placed.up = up

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

    def _died(self, placed: PlacedEngine, engine: RemoteEngine, error: StageError) -> StageError:
        """Handles the end of an engine, on its listener and before its requests fail. Returns their error: for an engine that ended
        with another rank, or since it lost one, the end of that one."""
        group = placed.group
        with self.lock:
            if engine.lost_rank:
                self._one_died.wait_for(lambda: placed.lost is not None or self.closing.is_set(), LOST_RANK_SECONDS)
            if placed.engine is not engine or self.closing.is_set():
                return error
            own = self._placement.rank_names(placed.place)
            if isinstance(placed.lost, LostPeerError) and placed.lost.rank != own:
                error = placed.lost
            placed.up, placed.lost = False, error
            self._end_others(placed, error)
            self._one_died.notify_all()
            if time.monotonic() - placed.since >= _STEADY_SECONDS:
                group.restarts = 0
            if group.restarting:
                return error  # the thread that started this engine sees that it is lost
            group.restarting = True
            thread = threading.Thread(
                target=self._restart, args=(group,), name=f"omni-restart-{group.name}", daemon=True
            )
            self._restarting.append(thread)
            thread.start()
        return error

    def _end_others(self, placed: PlacedEngine, error: StageError) -> None:
        """Ends the engines of the other ranks, under the lock: they may wait in a step for the one that is lost."""
        ranks = self._placement.rank_names(placed.place)
        for other in placed.group.engines:
            if other.lost is None:
                other.up, other.lost = False, LostPeerError(", ".join(other.stages), "running", error.problem, ranks)
                other.engine.give_up(f"with {ranks} ({placed.place})")

    def _unlinked(self, placed: PlacedEngine, engine: RemoteEngine, place: str) -> None:
        """Called by the listener of the engine, before its requests fail, when its connection to another engine has ended. Usually
        the other process has ended. If it still runs, it is ended and started again, since it may read memory of the lost
        connection."""
        other = self.by_place[place]
        with self.lock:
            gone = placed.engine is not engine or placed.lost is not None or other.lost is not None
            if gone or self.closing.is_set():
                return
            ended, problem = other.engine, f"its connection to {placed.place} has ended"
            ranks = self._placement.rank_names(other.place)
            other.up, other.lost = False, LostPeerError(", ".join(other.stages), "running", problem, ranks)
        _log.log(logging.WARNING, f"{other.place}: {problem}; its process is started again")
        ended.give_up()

    def _restart(self, group: StartGroup) -> None:
        while (error := self._lost(group)) is not None:
            delay = restart_delay(self._options.restart_seconds, group.restarts)
            group.restarts += 1
            _log.log(logging.WARNING, f"{group.name}: {error}; it is started again in {delay:.1f} s")
            if self.closing.wait(delay):
                continue
            try:
                self._replace(group)
            except Exception as failure:  # the next attempt, or the final error, reports it
                with self.lock:
                    for placed in group.engines:
                        again = StageError(", ".join(placed.stages), "starting its process again", error_text(failure))
                        placed.lost = failure if isinstance(failure, StageError) else again
        self._on_change()

    def _lost(self, group: StartGroup) -> StageError | None:
        """The error of engines that have to be started again. None ends the thread: the engines run, or are not started again."""
        with self.lock:
            lost = next((placed.lost for placed in group.engines if placed.lost is not None), None)
            final = group.restarts >= self._options.restarts
            if lost is not None and not final and not self.closing.is_set():
                return lost
            if lost is not None and final:
                times = f"it was started again {group.restarts} times; " if group.restarts else ""
                for placed in group.engines:
                    problem = f"{(placed.lost or lost).problem}; {times}load the model again"
                    placed.failure = StageError((placed.lost or lost).stage, lost.doing, problem)
            group.restarting = False
            self._restarting.remove(threading.current_thread())
        if group.engines[0].failure is not None:
            # Without the lock: a log handler may ask the engines, whose listeners take it.
            _log.log(logging.ERROR, f"{group.name}: {group.engines[0].failure}")
        return None

    def _replace(self, group: StartGroup) -> None:
        if len(group.engines) > 1:
            self._end_last(group)
        engines = [self._new_engine() for _ in group.engines]
        with self.lock:
            for placed, engine in zip(group.engines, engines, strict=True):
                same = [each for each in self.by_place.values() if device_of(each.place) == device_of(placed.place)]
                placed.coming = engine  # `stop` ends it from now on
                # The engines that run hold their parts of the device already.
                placed.share = DeviceShare(sum(each.up for each in same), len(same))
                if self.closing.is_set():
                    engine.give_up()
        try:
            self._load(group, engines)
            wait_ready(engines)
        except BaseException:
            for engine in engines:
                engine.kill()
            raise
        finally:
            with self.lock:
                for placed in group.engines:
                    placed.coming = None
        with self._joining:
            for placed, engine in zip(group.engines, engines, strict=True):
                self._start(placed, engine)
            try:
                for pair in self._neighbours():
                    own = [placed for placed in pair if placed in group.engines]
                    others = [placed for placed in pair if placed not in group.engines]
                    if own and all(other.up for other in others):
                        # One that has ended meanwhile is connected when it is started again.
                        self._connect(*own, *others)
            except BaseException:
                for engine in engines:
                    with suppress(Exception):
                        engine.close()
                raise
            self._open(group)

    def _end_last(self, group: StartGroup) -> None:
        """Ends the remaining previous engines of the group. They hold memory of their devices until they have exited."""
        for placed in group.engines:
            placed.engine.give_up()
        for placed in group.engines:
            with suppress(Exception):
                placed.engine.close()

    def _kill_early(self) -> None:
        early, self._early = self._early, None
        if early is not None:
            early.kill()


def restart_delay(seconds: float, restarts: int) -> float:
    """The wait before a restart, no longer than a thread can wait."""
    return min(seconds * 2.0 ** min(restarts, 1000), threading.TIMEOUT_MAX)
