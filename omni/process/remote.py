"""One engine in a process of its own, as the user's process sees it."""

import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress

from omni.engine import EngineRequest, RequestFailed, RequestFinished, Sink, StageMemory, StartReport
from omni.errors import LostPeerError, LostRankError, OmniError, StageError, as_omni_error, error_text, fresh
from omni.ipc import Channel, ChannelClosed, Codec, Undecodable
from omni.ipc.memory import OutputRing, map_memory
from omni.process.child import EngineProcess
from omni.process.errors import ErrorData
from omni.process.logs import show
from omni.process.messages import (
    AbortSubmitted,
    Answer,
    Check,
    Close,
    Closed,
    Connect,
    EngineState,
    FinishedOut,
    FromEngine,
    GetState,
    Out,
    ProcessFailed,
    RankDescriptor,
    Ready,
    Start,
    Submit,
    TextVocabulary,
    ToEngine,
    Turn,
    lost_turn,
    output_of,
)
from omni.process.open_requests import OpenRequests
from omni.process.queries import CheckedParameters, EngineQueries
from omni.process.send_queue import SendQueue
from omni.sampling import SamplingParams
from omni.stage import StageUsage
from omni.timeline.trace import Trace
from omni.utils.log import safe_logger

_log = safe_logger(__name__)

_CLOSE_SECONDS = 90.0
"""Seconds from `Close` until a process that has not closed is killed: its device may hang, or all of it. Longer than a step may
wait for the ranks of other engines."""
_SENDING = "sending a request to its process"


class RemoteEngine:
    """Starts the process at once, unless it runs already. `load` has it load stages, `ready` waits for that, and `start` begins to
    take its outputs.

    Sinks are called by one thread, the listener. It ends with the process, whether that was closed or died: then every request
    fails, with a LostPeerError if it died.
    """

    def __init__(self, process: EngineProcess | None = None) -> None:
        self.name = "engine"
        """The stages, for errors."""
        self._ranks = self._place = ""
        self._process = process or EngineProcess()
        self._receives: Codec[FromEngine] = Codec(FromEngine)
        self._channel: Channel[ToEngine, FromEngine] = Channel(self._process.socket, Codec(ToEngine), self._receives)
        self._send_queue = SendQueue(self._channel, self._fail_unsent)
        self.memory: Mapping[str, StageMemory] = {}
        """Device memory of each stage, divided at the start."""
        self.start_report = StartReport()
        """The report of the start. It is complete once `ready` is set."""
        self.closed_stages: frozenset[str] = frozenset()
        """Stages that were closed after a fault."""
        self.timeline: Trace | None = None
        """The engine's timeline, after `close`, if one was recorded."""
        self._longest_prompts: Mapping[str, int | None] = {}
        self._open_requests = OpenRequests()
        self._queries = EngineQueries(self._send)
        self._checked = CheckedParameters()
        self._on_death: Callable[[StageError], StageError] = lambda error: error
        self._on_unlinked: Callable[[str], None] = lambda place: None
        self._links: dict[str, int] = {}
        """The number of the latest `Connect` to each place."""
        self._last: EngineState | None = None
        self._close_error: ErrorData | None = None
        self._closing = threading.RLock()
        self._close_asked = False
        self._listener: threading.Thread | None = None
        self._ended = False
        self.lost_rank = False
        """Whether the process ended because it lost, or seemed to lose, another rank of a stage."""
        self._given_up = ""
        self.hung = False
        """Whether the process was killed because it did not close."""
        self._stopped = threading.Event()

    @property
    def pid(self) -> int:
        """The id of the engine's process."""
        return self._process.pid

    def load(self, start: Start, stages: Iterable[str], ranks: str = "") -> None:
        """Tells the process to load stages of a checked pipeline; returns at once. `ready` reports the end of the process.

        ranks: the ranks that it has of cut stages, for errors."""
        self.name = ", ".join(stages)
        self._ranks, self._place = ranks, start.place
        self._send(start)

    def set_vocabulary(self, vocabulary: TextVocabulary) -> None:
        """After `load`; the process waits for it."""
        self._send(vocabulary)

    def join(self, stage: str, other: int | None, descriptor: int) -> None:
        """Passes the sockets and memory shared with the other ranks of a stage to the process, before `load`; see
        `RankDescriptor`."""
        self._send(RankDescriptor(stage, other), descriptor)

    def ready(self) -> None:
        """Waits until the stages are loaded. Raises the error of the process, of the same type and text as in this one."""
        while not self.take_start():
            pass

    @property
    def descriptor(self) -> int:
        """A descriptor for `select`, before `start`: readable when `take_start` does not wait."""
        return self._channel.descriptor

    def take_start(self) -> bool:
        """Waits for the next message of the start. Returns whether it is the last; raises as `ready` does."""
        try:
            received = self._channel.receive()
        except ChannelClosed:
            raise self._death("starting") from None
        assert received is not None
        match received:
            case Ready(memory, longest_prompts, report), ring:
                assert ring is not None
                self._receives.ring = OutputRing(map_memory(ring))
                self.memory, self._longest_prompts, self.start_report = memory, longest_prompts, report
                return True
            case ProcessFailed(error), _:
                raise error.rebuild("starting")
            case message, _:
                self._take(message)
        return False

    def start(self, on_death: Callable[[StageError], StageError], on_unlinked: Callable[[str], None]) -> None:
        """Starts the listener, which calls both before requests fail. on_death: if the process ends without `close`; gives their
        error. on_unlinked: with the place of another engine, if the connection to it ends."""
        self._on_death, self._on_unlinked = on_death, on_unlinked
        listener = threading.Thread(target=self._listen, name="omni-listener", daemon=True)
        listener.start()
        self._listener = listener

    @property
    def requests(self) -> int:
        """Requests that are not finished."""
        return len(self._open_requests)

    @property
    def awaited(self) -> bool:
        """Whether a request or a query is not finished, or the start."""
        return self._listener is None or bool(self._open_requests) or self._queries.open

    @property
    def stopped(self) -> bool:
        """Returns what `EngineProcess.stopped` returns."""
        return self._process.stopped

    def submit(self, request: EngineRequest, sink: Sink) -> OmniError | None:
        """See `Engine.submit`. Returns why a request cannot be sent; its sink gets nothing then."""
        failure = self._open_requests.add(request.id, sink)
        if failure is not None:
            return failure
        try:
            self._send_queue.send(Submit.of(request))
        except ChannelClosed:
            pass  # the listener fails every request
        except Exception as error:
            if self._open_requests.pop(request.id) is not None:
                return as_omni_error("engine", _SENDING, error)
        return None

    def abort(self, request_id: str, error: OmniError, number: int = 0) -> None:
        """See `Engine.abort`. number: the number of the request."""
        self._send(AbortSubmitted(request_id, ErrorData.of(error), number))

    def connect(self, place: str, end: socket.socket) -> "Future[Answer | None]":
        """Connects the engine to the one on a place, through a socket, which is closed here. The answer has the error, if any;
        None if the process ended."""

        def query(number: int) -> Connect:
            self._links[place] = number
            return Connect(number, place)

        with end:
            return self._queries.post(query, end.fileno())[1]

    def check(self, sampling: Mapping[str, SamplingParams], fields: Mapping[str, str]) -> None:
        """See `Engine.check`: one round trip for parameters that were not checked lately. Raises StageError if the process is
        gone."""
        if not sampling or sampling in self._checked:
            return
        answer = self._ask(lambda number: Check(number, dict(sampling), dict(fields)))
        if answer is None:
            raise self._open_requests.failure or StageError("engine", "closing", "the engine was closed")
        if answer.error is not None:
            raise answer.error.rebuild("checking a request")
        self._checked.add(sampling)

    def longest_prompt(self, stage: str) -> int | None:
        """See `Engine.longest_prompt`."""
        return self._longest_prompts[stage]

    def usage(self) -> Mapping[str, StageUsage]:
        """See `Engine.usage`. After the end of the process, returns the last usage."""
        state = self._state()
        if state.usage_error is not None:
            raise state.usage_error.rebuild("reporting its usage")
        return state.usage

    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """See `Engine.counters`. After the end of the process, returns the last counters."""
        state = self._state()
        if state.counters_error is not None:
            raise state.counters_error.rebuild("reporting its counters")
        return state.counters

    @property
    def idle(self) -> bool:
        """See `Engine.idle`."""
        return not self._open_requests and self._state().idle

    def close(self) -> None:
        """See `Engine.close`. The process has exited when this returns; one that does not close in time is killed."""
        if self._listener is None:
            self.kill()
            return
        if not self._close_asked:
            self._close_asked = True
            self._send(Close())
        with self._closing:
            # Python 3.11 marks a thread as dead after an interrupted join, and the next join would not wait.
            if not self._stopped.wait(_CLOSE_SECONDS):
                self.hung = True
                self.give_up(f"since it had not closed within {_CLOSE_SECONDS:g} s")
                self._stopped.wait()
            self._listener.join()
            error, self._close_error = self._close_error, None
        if error is not None:
            raise error.rebuild("closing")

    def give_up(self, why: str = "") -> None:
        """Ends the process, so that `ready` raises. why: continues "its process was ended", for errors. Any thread."""
        self._given_up = self._given_up or why
        self._process.kill()

    def kill(self) -> None:
        """Ends the process at once. Only before `start`."""
        self._process.kill()
        self._release()

    def _send(self, message: ToEngine, extra: int | None = None) -> None:
        """Sends a message. If the process is gone, the listener reports it."""
        with suppress(ChannelClosed):
            self._send_queue.send(message, extra)

    def _fail_unsent(self, message: ToEngine, error: Exception) -> None:
        match message:
            case Submit(id=request_id):
                self._open_requests.fail(request_id, as_omni_error("engine", _SENDING, error))
            case Check(number) | Connect(number) | GetState(number):
                self._queries.answer(Answer(number, error=ErrorData.of(error)))
            case _:
                _log.error("a message to the engine is lost: %s", error_text(error))

    def _state(self) -> EngineState:
        answer = self._ask(GetState)
        state = answer.state if answer is not None else self._last
        return state if state is not None else EngineState({}, {}, True)

    def _ask(self, query: Callable[[int], Check | GetState]) -> Answer | None:
        """The answer; None if the process ended, and for the listener itself, which would wait for ever (in a log handler)."""
        if threading.current_thread() is self._listener:
            return None
        return self._queries.ask(query)

    # The listener.

    def _listen(self) -> None:
        error = StageError("engine", "closing", "the engine was closed")
        died = True
        try:
            while not self._ended:
                try:
                    received = self._channel.receive()
                except Undecodable as lost:
                    self._fail_lost(lost)
                    continue
                assert received is not None
                self._take(received[0])
            died = False
        except ChannelClosed:
            error = self._death("running")
            _log.error("%s", error)
        except StageError as failed:  # of the process, which ends with it
            error = failed
            # A lost rank is one that has ended, or hangs. This process is sound, and its frames say nothing.
            _log.error("%s", error, exc_info=None if self.lost_rank else failed)
        except BaseException as unexpected:  # no request may wait for ever
            self._process.kill()
            _log.exception("the engine's outputs cannot be taken")
            error = StageError("engine", "taking its outputs", error_text(unexpected))
        finally:
            try:
                self._end(error, died)
            finally:
                self._stopped.set()

    def _fail_lost(self, lost: Undecodable) -> None:
        """Fails the requests whose outputs were in a message that is lost, and takes its rest. Raises it if they are not known."""
        try:
            request_ids, rest = lost_turn(lost.raw)
        except ValueError:
            raise lost from None
        failure = StageError("engine", "taking its outputs", str(lost))
        for request_id in request_ids:
            self.abort(request_id, failure)
            self._open_requests.fail(request_id, failure)
        self._take(rest)

    def _take(self, message: FromEngine) -> None:
        match message:
            case Turn(outputs, answers, logs, unlinked, closed):
                self.closed_stages = self.closed_stages.union(closed)
                for place in [place for place, number in list(self._links.items()) if number in unlinked]:
                    self._on_unlinked(place)
                for output in outputs:
                    self._deliver(output)
                for answer in answers:
                    self._queries.answer(answer)
                for record in logs:
                    show(record)
            case Closed(state, error, timeline):
                self._last, self._close_error, self.timeline, self._ended = state, error, timeline, True
            case ProcessFailed(error):
                failed = self._lost("running", f"failed: {error.text}")
                failed.__cause__ = error.rebuild("running")
                self.lost_rank = isinstance(failed.__cause__, LostRankError)
                raise failed
            case _:
                raise AssertionError(f"{type(message).__name__} after the start")

    def _deliver(self, item: Out) -> None:
        request_id = item.request_id
        if isinstance(item, FinishedOut):
            sink = self._open_requests.pop(request_id)
            if sink is not None:
                error = item.error.rebuild_known("running a request") if item.error is not None else None
                sink.finish(RequestFailed(error) if error is not None else RequestFinished())
            return
        sink = self._open_requests.get(request_id)
        if sink is None:
            return
        try:
            sink.give(output_of(item))
        except OmniError as error:
            self.abort(request_id, error)
            self._open_requests.fail(request_id, error)

    def _death(self, doing: str) -> LostPeerError:
        """The error after the process ended without a last message."""
        ended = self._process.ended()  # waits for it
        return self._lost(doing, f"was ended {self._given_up}" if self._given_up else ended)

    def _lost(self, doing: str, how: str) -> LostPeerError:
        """how: continues "its process"."""
        problem = f"its process {self.pid} {how}"
        if self._ranks:
            problem = f"{self._ranks} ({self._place}) ended: {problem}"
        return LostPeerError(self.name, doing, problem, self._ranks)

    def _end(self, error: StageError, died: bool) -> None:
        try:
            if died:
                error = self._on_death(fresh(error))
            sinks = self._open_requests.refuse(error)
            self._queries.refuse()
            for sink in sinks:
                sink.finish(RequestFailed(self._open_requests.failure or error))
        finally:
            self._queries.close()
            self._release()

    def _release(self) -> None:
        """Waits for the end of the process and frees its memory here. Idempotent."""
        self._process.end()
        self._channel.close()
        self._receives.ring = None
