"""The engine process's end of the channel: the command queue of the engine's loop."""

import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue

from omni.engine import Engine, EngineOutput, EngineRequest, RequestFailed, RequestFinished, StageFinished, StageOutput
from omni.engine.request import AbortRequest, ConnectPeer, EngineCommand, SafeSink, SubmitRequest, UnsendableOutput
from omni.errors import OmniError, as_omni_error, error_text, type_of
from omni.frontend.host_rules import HostRulesBuilder
from omni.ipc import Channel, ChannelClosed, Codec, Typed, Undecodable
from omni.payload import AudioChunk, GeneratedTokens
from omni.process.errors import ErrorData
from omni.process.link import ChannelLink
from omni.process.messages import (
    AbortSubmitted,
    Answer,
    AudioOut,
    Check,
    Close,
    Connect,
    EngineState,
    FinishedOut,
    FromEngine,
    GetState,
    LogRecordOut,
    OtherOut,
    Out,
    StageFinishedOut,
    Submit,
    ToEngine,
    TokensOut,
    Turn,
)
from omni.sampling import HostRules, TextRules
from omni.utils.log import safe_logger

_log = safe_logger(__name__)

EngineEnd = Channel[FromEngine, ToEngine]

_RETRY_MILLISECONDS = 1
"""Time until an idle engine tries again to send messages that the other side had no time to receive."""


@dataclass(slots=True)
class _Building:
    """A request whose grammar is being compiled. commands: those for it that came in the meantime."""

    request: EngineRequest
    sink: SafeSink
    commands: list[EngineCommand]


class EngineServer:
    """A `CommandQueue`: reads commands from the channel and collects outputs, one message of them for each turn of the loop.

    If the user's process is gone, the engine's exits at once: the system frees everything.
    """

    def __init__(self, channel: EngineEnd) -> None:
        self._channel = channel
        self._engine: Engine | None = None
        self._rules: HostRulesBuilder | None = None
        self._local: deque[EngineCommand] = deque()
        self._outputs: list[Out] = []
        self._answers: list[Answer] = []
        self._unlinked: list[int] = []
        self._closed: list[str] = []
        """Closed stages not yet reported."""
        self._reported: set[str] = set()
        """Closed stages of this and of earlier turns."""
        self._logs: deque[LogRecordOut] = deque()
        self._checker: Codec[OtherOut] = Codec(OtherOut)
        # The state is that after the turn, in which stages have dropped requests that ended before it.
        self._asked: deque[int] = deque()
        self._sending_logs = 0
        self._building: dict[str, _Building] = {}
        self._built: deque[tuple[str, dict[str, HostRules] | OmniError]] = deque()
        self._jobs: SimpleQueue[tuple[str, dict[str, TextRules]]] = SimpleQueue()
        self._awake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._awake, select.POLLIN)
        self._poll.register(channel.descriptor, select.POLLIN)

    def serve(self, engine: Engine, rules: HostRulesBuilder | None) -> None:
        """Runs the engine's loop until the other side asks to close. Raises the loop's errors. rules: None if no
        stage writes text."""
        self._engine, self._rules = engine, rules
        threading.Thread(target=self._compile, name="omni-grammars", daemon=True).start()
        engine.run()

    def state(self) -> EngineState:
        """The state of the engine. Called on the engine's thread."""
        assert self._engine is not None
        usage, usage_error = _asked(self._engine.usage)
        counters, counters_error = _asked(self._engine.counters)
        return EngineState(usage, counters, self._engine.idle, usage_error, counters_error)

    # The command queue.

    def put(self, command: EngineCommand) -> None:
        self._local.append(command)
        self.wake()

    def take(self) -> Sequence[EngineCommand]:
        commands: list[EngineCommand] = []
        while self._local:
            commands.append(self._local.popleft())
        while self._built:
            commands += self._finish_building(*self._built.popleft())
        while (received := self._receive()) is not None:
            commands += self._commands(*received)
        while self._local:  # aborts of refused messages
            commands.append(self._local.popleft())
        return commands

    @property
    def waiting(self) -> bool:
        return bool(self._local or self._building)

    def holds(self, request_id: str) -> bool:
        return request_id in self._building

    def flush(self) -> None:
        while self._asked:
            self._answers.append(Answer(self._asked.popleft(), self.state()))
        if self._engine is not None and len(self._engine.closed_stages) > len(self._reported):
            self._closed += [stage for stage in self._engine.closed_stages if stage not in self._reported]
            self._reported.update(self._closed)
        if not self._unsent:
            return
        try:
            sent = self._send(self._turn(), block=False)
        except OSError as error:  # no memory or descriptor is free: the next turn tries again
            _log.debug("outputs wait: %s", error)
            return
        if sent:
            self._clear_sent()

    def wait(self, seconds: float | None = None) -> None:
        longest = None if seconds is None else round(seconds * 1000)
        self._poll.poll(_RETRY_MILLISECONDS if self._unsent else longest)
        with suppress(BlockingIOError):  # the channel was readable
            os.eventfd_read(self._awake)

    def wake(self) -> None:
        os.eventfd_write(self._awake, 1)

    def watch(self, descriptor: int) -> None:
        self._poll.register(descriptor, select.POLLIN)

    def log(self, record: LogRecordOut) -> None:
        """Adds a log record for the user's process. Any thread."""
        self._logs.append(record)
        self.wake()

    def finish(self) -> None:
        """Sends the remaining messages."""
        if self._unsent:
            self._send(self._turn())
            self._clear_sent()

    @property
    def _unsent(self) -> bool:
        return bool(self._outputs or self._answers or self._logs or self._unlinked or self._closed)

    def _turn(self) -> Turn:
        self._sending_logs = len(self._logs)
        logs = [self._logs[index] for index in range(self._sending_logs)]
        return Turn(self._outputs, self._answers, logs, self._unlinked, self._closed)

    def _clear_sent(self) -> None:
        self._outputs, self._answers, self._unlinked, self._closed = [], [], [], []
        for _ in range(self._sending_logs):
            self._logs.popleft()

    def _receive(self) -> tuple[ToEngine, int | None] | None:
        while True:
            try:
                received = self._channel.receive(block=False)
            except ChannelClosed:
                os._exit(1)
            except Undecodable as error:
                self._refuse(error)
            else:
                return received

    def _refuse(self, error: Undecodable) -> None:
        """Fails only the request or the query of a message that cannot be decoded."""
        match error.raw:
            case ["Submit", str(request_id), *_, int(number), _]:
                failure = as_omni_error("engine", "taking a request in its process", error.__cause__ or error)
                self._outputs.append(FinishedOut(request_id, ErrorData.of(failure)))
                self._local.append(AbortRequest(request_id, failure, number))
            case ["Check" | "Connect", int(number), *_]:
                self._answers.append(Answer(number, error=ErrorData.of(error)))
            case _:
                _log.error("a message to the engine is lost: %s", error)

    def _send(self, message: FromEngine, *, block: bool = True) -> bool:
        try:
            return self._channel.send(message, block=block)
        except ChannelClosed:
            os._exit(1)

    def _commands(self, message: ToEngine, descriptor: int | None) -> Sequence[EngineCommand]:
        assert self._engine is not None
        match message:
            case Submit():
                return self._submit(message)
            case AbortSubmitted(request_id, error, number):
                abort = AbortRequest(request_id, error.rebuild_known("aborting a request"), number)
                if request_id not in self._building:
                    return [abort]
                self._building[request_id].commands.append(abort)
            case GetState(number):
                self._asked.append(number)
            case Check():
                self._answers.append(self._check(message, self._engine))
            case Connect(number, place):
                assert descriptor is not None
                return [self._connect(number, place, descriptor)]
            case Close():
                self._engine.stop()
            case _:
                raise AssertionError(f"{type(message).__name__} after the start")
        return []

    def _connect(self, number: int, place: str, descriptor: int) -> ConnectPeer:
        link = ChannelLink(socket.socket(fileno=descriptor), self._poll.unregister)
        self._poll.register(link.descriptor, select.POLLIN)

        def on_connected(error: OmniError | None) -> None:
            self._answers.append(Answer(number, error=ErrorData.of(error) if error is not None else None))

        def on_lost() -> None:
            self._unlinked.append(number)

        return ConnectPeer(place, link, on_connected, on_lost)

    def _check(self, message: Check, engine: Engine) -> Answer:
        try:
            engine.check(message.sampling, message.fields)
        except Exception as error:
            return Answer(message.number, error=ErrorData.of(error))
        return Answer(message.number)

    def _submit(self, message: Submit) -> Sequence[EngineCommand]:
        request = message.request()
        sink = SafeSink(request.id, self._sink(request.id))
        try:
            self._check_request(request)
        except Exception as error:
            return _refused(request, sink, as_omni_error("engine", "checking a request", error))
        if not message.text_rules:
            return [SubmitRequest(request, sink)]
        self._building[request.id] = _Building(request, sink, [])
        if any(rules.structured is not None for rules in message.text_rules.values()):
            self._jobs.put((request.id, message.text_rules))
            return []
        return self._finish_building(request.id, self._build(message.text_rules))

    def _check_request(self, request: EngineRequest) -> None:
        """The request may be unchecked here: another engine may have checked it, or none."""
        assert self._engine is not None
        own = {stage: params for stage, params in request.sampling.items() if stage in self._engine.memory}
        self._engine.check(own, {stage: f"{stage}.sampling" for stage in own})

    def _finish_building(self, request_id: str, rules: dict[str, HostRules] | OmniError) -> Sequence[EngineCommand]:
        building = self._building.pop(request_id)
        if isinstance(rules, OmniError):
            return _refused(building.request, building.sink, rules)
        return [SubmitRequest(replace(building.request, rules=rules), building.sink), *building.commands]

    def _build(self, rules: dict[str, TextRules]) -> dict[str, HostRules] | OmniError:
        assert self._rules is not None, "the front end has text rules only with a vocabulary"
        try:
            return {name: self._rules.build(each) for name, each in rules.items()}
        except BaseException as error:  # a panic of the compiler too: later requests need the thread
            return as_omni_error("engine", "building the rules of a request", error)

    def _compile(self) -> None:
        """Compiles grammars, which may take seconds, beside the loop: the compiler runs without the interpreter lock."""
        while True:
            request_id, rules = self._jobs.get()
            self._built.append((request_id, self._build(rules)))
            self.wake()

    def _sink(self, request_id: str) -> Callable[[EngineOutput], None]:
        outputs = self._add

        def take(output: EngineOutput) -> None:
            match output:
                case StageOutput(modality, GeneratedTokens() as tokens) if not output.tensors:
                    outputs(TokensOut(request_id, modality, tokens.ids, tokens.ends))
                case StageOutput(modality, AudioChunk() as audio) if not output.tensors:
                    outputs(AudioOut(request_id, modality, audio.samples, audio.sample_rate))
                case StageOutput(modality, meta, tensors):
                    # Of tensors only type and device can be wrong: their values are not copied twice.
                    empty = {name: tensor.new_empty(0) for name, tensor in tensors.items()}
                    self._check_sendable(OtherOut(request_id, modality, Typed(meta), empty))
                    outputs(OtherOut(request_id, modality, Typed(meta), dict(tensors)))
                case StageFinished(stage, reason, counts, withheld):
                    outputs(
                        StageFinishedOut(
                            request_id=request_id, stage=stage, reason=reason, counts=dict(counts), withheld=withheld
                        )
                    )
                case RequestFinished():
                    outputs(FinishedOut(request_id))
                case RequestFailed(error):
                    outputs(FinishedOut(request_id, ErrorData.of(error)))

        return take

    def _check_sendable(self, output: OtherOut) -> None:
        """Raises UnsendableOutput for values of a plugin that cannot be encoded and decoded: in a turn's message they would fail
        all requests."""
        try:
            self._checker.decode(*self._checker.encode(output))
        except Exception as error:
            remedy = "give structs of a module, with fields of their types"
            raise UnsendableOutput(
                f"{type_of(output.meta.value)} cannot be given: {error_text(error)}; {remedy}"
            ) from error

    def _add(self, output: Out) -> None:
        self._outputs.append(output)


def _asked(ask: Callable[[], Mapping[str, Mapping[str, int]]]) -> tuple[dict[str, Mapping[str, int]], ErrorData | None]:
    try:
        return {stage: dict(numbers) for stage, numbers in ask().items()}, None
    except OmniError as error:
        return {}, ErrorData.of(error)


def _refused(request: EngineRequest, sink: SafeSink, error: OmniError) -> Sequence[EngineCommand]:
    """Ends a request that does not reach the engine, which drops other engines' messages for it."""
    sink.finish(RequestFailed(error))
    return [AbortRequest(request.id, error, request.number)]
