"""The engine: one thread per device drives the stage workers there and their orchestrator."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from operator import attrgetter

import torch

from omni.device import Device, SyncCheck, SyncPoint, may_sync, sync_guard
from omni.engine.command_queue import CommandQueue, LocalCommandQueue
from omni.engine.cut import CutStages
from omni.engine.faults import StageFault, closed_after_error
from omni.engine.memory import StageMemory
from omni.engine.orchestrator import Orchestrator
from omni.engine.peers import EngineEdges
from omni.engine.request import (
    AbortRequest,
    ConnectPeer,
    EngineRequest,
    RequestFailed,
    SafeSink,
    Sink,
    SubmitRequest,
)
from omni.engine.stage_order import StageOrder
from omni.engine.start import StartReport
from omni.engine.stats import StageStats
from omni.errors import OmniError, StageError, as_omni_error, error_text, plugin_call, printable_error
from omni.sampling import SamplingParams
from omni.stage import StageUsage, StageWorker
from omni.stage.returned import checked_moved
from omni.timeline.file import TimelineFile
from omni.timeline.slack import ORDER
from omni.utils.closing import ClosingSteps
from omni.utils.interrupts import is_interrupt
from omni.utils.log import safe_logger
from omni.utils.origin import with_origin

_log = safe_logger(__name__)

_SPIN_SECONDS = 0.002
_NAP_SECONDS = 0.0001
_REST_SECONDS = 0.1
"""Idle time after which an engine without requests of its own polls steps of other engines only this often."""
_DRAIN_TURNS = 1000
"""Maximum number of turns in which `close` waits for stages whose `tick` keeps returning True."""
LANE = "engine"
"""The timeline's lane of the loop's thread: the turns of each stage's worker and of the orchestrator."""
_CLOSED = StageError("engine", "closing", "the engine was closed")

_TICK: Callable[[StageWorker], Callable[[], bool]] = attrgetter("tick")
_POLL: Callable[[StageWorker], Callable[[], bool]] = attrgetter("poll")


class Engine:
    """An `EngineClient` that takes commands from any thread; the loop's thread does everything else. A test can drive the engine
    itself by `tick`, without `start`."""

    def __init__(
        self,
        device: Device,
        orchestrator: Orchestrator,
        *,
        workers: Mapping[str, StageWorker],
        ends: EngineEdges,
        memory: Mapping[str, StageMemory],
        timeline: TimelineFile | None = None,
        command_queue: CommandQueue | None = None,
        stage_order: StageOrder | None = None,
        report: StartReport | None = None,
        cut: CutStages | None = None,
    ) -> None:
        """command_queue: None takes one for callers in this process. stage_order: None launches in the order of `workers`. report:
        of the start. cut: the stages that are cut across engines."""
        self._cut = cut or CutStages()
        self.memory = memory
        """Device memory of each stage, divided at the start."""
        self.start_report = report or StartReport()
        self.start_reports: Mapping[str, StartReport] = {str(device.torch_device): self.start_report}
        self._device = device
        self._orchestrator = orchestrator
        self._workers = workers
        self._stats = StageStats(workers, orchestrator)
        self._ends = ends
        self._timeline = timeline
        self._stage_order = stage_order
        self._command_queue = command_queue or LocalCommandQueue()
        self._gate = threading.Lock()
        self._stopping = False
        self._stopped = threading.Event()
        self._closing = threading.RLock()
        self._closing_steps = self._steps_to_close()
        self._failure: OmniError | None = None
        self.turn: object | None = None
        """The current turn of the loop; None while the engine is idle and outside of the loop. Any thread may read it."""
        self._thread: threading.Thread | None = None
        self._sync_check = SyncCheck.OFF

    @property
    def takes_text_rules(self) -> bool:
        """False: the front end builds rules, in its own threads."""
        return False

    @property
    def failure(self) -> OmniError | None:
        """Why the loop has ended, or that a stage is closed."""
        if self._failure is not None or self._stopping:
            return self._failure or _CLOSED
        closed = [name for name in self._workers if name in self._orchestrator.closed_stages]
        return closed_after_error(closed[0]) if closed else None

    @property
    def interruption(self) -> OmniError | None:
        """None: an engine in this process is never started again."""
        return None

    def start(self) -> None:
        """Starts the loop's thread. Raises ConfigError for a bad `OMNI_SYNC_CHECK`."""
        self._sync_check = SyncCheck.from_environment()
        self._thread = threading.Thread(target=self._run, name="omni-engine", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Runs the loop in the calling thread, until `stop`. Raises ConfigError for a bad `OMNI_SYNC_CHECK`, and passes on errors
        of the loop, after which the engine is unusable."""
        self._sync_check = SyncCheck.from_environment()
        self._loop()

    def stop(self) -> None:
        """Ends the loop after the present turn. Later requests are refused."""
        with self._gate:
            self._stopping = True
        self._command_queue.wake()

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """Starts a request. Its outputs go to `sink` on the engine's thread. A closed engine refuses it at once."""
        with self._gate:
            if not self._stopping:
                self._command_queue.put(SubmitRequest(request, SafeSink(request.id, sink)))
                return
        sink(RequestFailed(_CLOSED))

    def abort(self, request_id: str, error: OmniError) -> None:
        """Aborts a request. Its sink gets `RequestFailed(error)`, unless the request is finished."""
        self._command_queue.put(AbortRequest(request_id, error))

    def check(self, sampling: Mapping[str, SamplingParams], fields: Mapping[str, str]) -> None:
        """Raises InputError for parameters that a stage cannot apply. sampling, fields: parameters and their names in
        errors, by stage. Thread-safe. The engine with rank 0 of a stage checks the stage's parameters."""
        for name, params in sampling.items():
            if name in self._cut.followed:
                continue
            check = self._workers[name].check
            with plugin_call(name, "checking sampling parameters", check):
                check(params, fields[name])

    def longest_prompt(self, stage: str) -> int | None:
        """The maximum prompt length of a stage in tokens; None for a stage without prompts."""
        return self._stats.longest_prompt(stage)

    def usage(self) -> Mapping[str, StageUsage]:
        """Resources in use at each stage. Raises StageError if a stage cannot report them."""
        return {name: self._stats.usage(name) for name in self._workers}

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """Totals of each stage since the start, by name. Raises StageError if a stage cannot report them."""
        return {name: self._stats.counters(name) for name in self._workers}

    @property
    def closed_stages(self) -> Collection[str]:
        """The stages that were closed after a fault. They stay closed."""
        return self._orchestrator.closed_stages

    @property
    def idle(self) -> bool:
        """Whether no request is active or waiting and no stage holds resources. A stage that cannot report them counts as idle. So
        does a stage whose rank 0 is in another engine, which has the requests."""
        if self._command_queue.waiting or self._orchestrator.unfinished or self._orchestrator.busy:
            return False
        return not any(self._stats.holds(stage) for stage in self._workers if stage not in self._cut.followed)

    @property
    def cut_stages(self) -> Collection[str]:
        """The stages that are cut across engines, and of which this one has a rank."""
        return self._cut.ranks.keys()

    @property
    def _follows(self) -> bool:
        """Whether a stage whose rank 0 is in another engine has incomplete steps. If it has, it may launch the next one."""
        return any(self._stats.holds(stage) for stage in self._cut.followed)

    def close(self) -> None:
        """Aborts all requests, stops the loop and frees the stages. Idempotent.

        All parts are closed even after errors: the first error is raised at the end, once; others are logged. Ctrl-C
        interrupts the call at any point; the next call continues from there. If several threads call it, one closes and
        the others wait.
        """
        self.stop()
        with self._closing:
            if self._thread is not None and self._thread.ident is not None:
                # Python 3.11 marks a thread as dead after an interrupted join, and the next join would not wait.
                self._stopped.wait()
                self._thread.join()
            self._closing_steps.run()

    def _steps_to_close(self) -> ClosingSteps:
        """The steps of `close`. Each can be repeated after an interruption."""
        steps: list[Callable[[], object]] = [
            self._end_requests,
            *(partial(self._close_worker, name) for name in self._workers),
            self._ends.close,
            self._cut.close,
            *([self._timeline.close] if self._timeline is not None else []),
        ]
        return ClosingSteps(steps, _log, "a further part of the engine")

    def _close_worker(self, name: str) -> None:
        if name not in self._orchestrator.closed_stages:
            worker = self._workers[name]
            with plugin_call(name, "closing", type(worker)):
                close = worker.close
            with plugin_call(name, "closing", close):
                close()

    def _end_requests(self) -> None:
        healthy = self._failure in (None, _CLOSED)
        self._failure = self._failure or _CLOSED
        self._take_commands()  # refuses commands that the loop did not reach
        self._orchestrator.abort_all(_CLOSED)
        with may_sync(SyncPoint.CLOSE):
            self._device.synchronize()
        if healthy:
            self._drain()

    def _drain(self) -> None:
        """Lets stages process the last aborts, so that they release the inputs."""
        with torch.inference_mode():
            for _ in range(_DRAIN_TURNS):
                if not self.tick():
                    return
            restless = [name for name in self._workers if self._call(name, _TICK)]
        for name in restless:
            problem = "returns True after every tick: return False if there was nothing to do"
            _log.error("stage %r %s", name, with_origin(problem, code=type(self._workers[name])))

    def tick(self) -> bool:
        """One round: commands, every worker, the orchestrator. Returns whether anything happened.

        Every worker is polled before a worker launches a step: a launch takes long, and no payload waits for it.
        """
        # Lost links are processed before any stage emits output for a request that needs them.
        moved = self._take_commands() | self._route(self._orchestrator.take_from_peers) | self._poll()
        if self._stage_order is None:
            moved |= self._tick(self._workers)
        else:
            moved |= self._tick_in_order(self._stage_order)
        return self._route(self._orchestrator.tick) or moved

    def _tick_in_order(self, order: StageOrder) -> bool:
        since = self._device.host_time()
        first, then = order.turn()
        numbers = order.numbers(first) if since else {}
        moved = self._tick(first)
        held = bool(then) and not order.follows(moved)
        if not held:
            moved |= self._tick(then)
        if moved:
            self._device.host_did(LANE, ORDER, since, **numbers, held=int(held))
        return moved

    def _tick(self, names: Iterable[str]) -> bool:
        moved, mailboxes = False, self._orchestrator.mailboxes
        for name in names:
            if self._call(name, _TICK):
                moved = True
                if mailboxes[name].outbox:
                    self._route(self._orchestrator.deliver)
                self._poll(ticked=name)
        return moved

    def _poll(self, ticked: str | None = None) -> bool:
        """Reads the results of every stage, producers first, and delivers them to consumers before these are polled. ticked: a
        stage that has just ticked: it is polled only if it has new input."""
        moved = False
        for name, mailbox in self._orchestrator.mailboxes.items():
            if name != ticked or mailbox.inbox:
                moved |= self._call(name, _POLL)
                if mailbox.outbox:
                    moved |= self._route(self._orchestrator.deliver)
        return moved

    def _call(self, name: str, method: "Callable[[StageWorker], Callable[[], bool]]") -> bool:
        """Calls a method of a worker, unless its stage is closed."""
        if name in self._orchestrator.closed_stages:
            return False
        worker, mailbox = self._workers[name], self._orchestrator.mailboxes[name]
        try:
            moved: object = self._turn(name, method(worker))
            if moved is not True and moved is not False:
                moved = checked_moved(moved, "tick" if method is _TICK else "poll", method(worker))
            if worker.outbox is not mailbox.outbox or worker.inbox is not mailbox.inbox:
                mailbox.check(worker)
            return moved is True
        except BaseException as error:  # includes panics of libraries
            if is_interrupt(error):
                raise
            # Workers isolate the errors of a request. After any other error the state of the stage is unknown.
            self.close_stage(name, mailbox.cause_of(error, worker))
            return True

    def _route(self, route: Callable[[], bool]) -> bool:
        try:
            return self._turn("route", route)
        except StageFault as fault:
            self.close_stage(fault.stage, fault.error)
            return True

    def close_stage(self, name: str, error: BaseException) -> None:
        """Closes a stage after a fault of its worker, on the loop's thread; see `Orchestrator.close_stage`. Tests fail on it
        (`omni.testing.no_retries`). Raises the error of a stage that is cut across engines, which ends this one: the ranks are out
        of step."""
        failure = as_omni_error(name, "running", error, type(self._workers[name]))
        if name in self._cut.ranks:
            raise failure
        _log.error(
            "stage %r is closed, and requests that need it fail: %s", name, failure, exc_info=printable_error(error)
        )
        with may_sync(SyncPoint.CLOSE_STAGE):
            self._device.synchronize()
        self._orchestrator.close_stage(name, failure)

    def _turn(self, name: str, tick: Callable[[], bool]) -> bool:
        since = self._device.host_time()
        moved = tick()
        if moved:
            self._device.host_did(LANE, name, since)
        return moved

    def _take_commands(self) -> bool:
        commands = self._command_queue.take()
        for command in commands:
            match command:
                case SubmitRequest(_, sink) if self._failure is not None:
                    sink.finish(RequestFailed(self._failure))
                case SubmitRequest():
                    self._orchestrator.submit(command)
                case AbortRequest(request_id, error, number):
                    self._orchestrator.abort(request_id, error, number)
                case ConnectPeer(on_connected=on_connected) if self._failure is not None:
                    on_connected(self._failure)
                case ConnectPeer():
                    self._orchestrator.connect(command)
        return bool(commands)

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # includes panics of libraries; no request may wait for a dead engine
            # Workers isolate the errors of a request. After any other error the state of the stages is unknown.
            self._failure = StageError("engine", "running its loop", error_text(error))
            self._failure.__cause__ = error
            self._orchestrator.abort_all(self._failure)
            self._refuse_all()
        finally:
            self._stopped.set()

    def _loop(self) -> None:
        with torch.inference_mode(), sync_guard(self._device, self._sync_check):
            since = time.perf_counter()
            turns = 0
            while not self._stopping:
                self.turn = turns = turns + 1
                moved = self.tick()
                self._command_queue.flush()
                if moved:
                    since = time.perf_counter()
                elif self.idle and not self._follows:
                    if not self._device.capture_deferred():
                        self.turn = None
                        self._command_queue.wait()
                else:
                    if self._timeline is not None:
                        self._timeline.poll()
                    self._rest(time.perf_counter() - since)
            self.turn = None

    def _rest(self, seconds: float) -> None:
        """Called between two turns when nothing has happened for this number of seconds."""
        # The device is busy. Spin for a short launch gap, but sleep in long waits to free the core.
        time.sleep(0 if seconds < _SPIN_SECONDS else _NAP_SECONDS)
        if seconds >= _REST_SECONDS and self.idle:
            # This rank may wait for tokens, and gloo reports their arrival only to a waiting thread. A message ends the wait.
            self._command_queue.wait(_REST_SECONDS)

    def _refuse_all(self) -> None:
        while not self._stopping:
            self._take_commands()
            self._command_queue.flush()
            self._command_queue.wait()
