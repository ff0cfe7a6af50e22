"""The engine process's end of the channel: the mailbox of the engine's loop."""

import os
import select
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue

from omni.engine import Engine, EngineOutput, EngineRequest, RequestFailed, RequestFinished, StageFinished, StageOutput
from omni.engine.request import AbortRequest, EngineCommand, SafeSink, SubmitRequest
from omni.errors import OmniError, known
from omni.frontend.host_rules import HostRulesBuilder
from omni.ipc import Channel, ChannelClosed, Typed
from omni.payload import AudioChunk, GeneratedTokens
from omni.process.errors import ErrorData
from omni.process.messages import (
    Abort,
    Answer,
    AskState,
    AudioOut,
    Check,
    Close,
    EngineState,
    FinishedOut,
    FromEngine,
    OtherOut,
    Out,
    Outputs,
    StageFinishedOut,
    Submit,
    ToEngine,
    TokensOut,
)
from omni.sampling import HostRules, TextRules

EngineEnd = Channel[FromEngine, ToEngine]

_RETRY_MILLISECONDS = 1
"""Until an idle engine tries again to send what the other side had no time for."""


@dataclass(slots=True)
class _Building:
    """A request whose grammar is compiled in `GrammarThread`. aborts: commands for it that came in the meantime."""

    request: EngineRequest
    sink: SafeSink
    commands: list[EngineCommand]


class EngineServer:
    """A `Mailbox`: reads commands from the channel and collects outputs, one message of them for each turn of the loop.

    If the user's process is gone, the engine's exits at once: the system frees everything.
    """

    def __init__(self, channel: EngineEnd) -> None:
        self._channel = channel
        self._engine: Engine | None = None
        self._rules: HostRulesBuilder | None = None
        self._local: deque[EngineCommand] = deque()
        self._outputs: list[Out] = []
        self._answers: deque[Answer] = deque()
        # The state is that after the turn, in which stages have dropped what ended before it.
        self._asked: deque[int] = deque()
        self._building: dict[str, _Building] = {}
        self._built: deque[tuple[str, dict[str, HostRules] | OmniError]] = deque()
        self._jobs: SimpleQueue[tuple[str, dict[str, TextRules]]] = SimpleQueue()
        self._awake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._awake, select.POLLIN)
        self._poll.register(channel.descriptor, select.POLLIN)

    def serve(self, engine: Engine, rules: HostRulesBuilder | None) -> None:
        """Runs the engine's loop until the other side asks to close. rules: None if no stage writes text."""
        self._engine, self._rules = engine, rules
        threading.Thread(target=self._compile, name="omni-grammars", daemon=True).start()
        engine.run()

    def state(self) -> EngineState:
        """On the engine's thread."""
        assert self._engine is not None
        return EngineState(dict(self._engine.usage()), dict(self._engine.counters()), self._engine.idle)

    # The mailbox.

    def put(self, command: EngineCommand) -> None:
        self._local.append(command)
        self.wake()

    def take(self) -> Sequence[EngineCommand]:
        commands: list[EngineCommand] = []
        while self._local:
            commands.append(self._local.popleft())
        while self._built:
            commands += self._finish_building(*self._built.popleft())
        while (message := self._receive()) is not None:
            commands += self._commands(message)
        return commands

    @property
    def waiting(self) -> bool:
        return bool(self._local or self._building)

    def flush(self) -> None:
        if self._outputs and self._send(Outputs(self._outputs), block=False):
            self._outputs = []
        while self._asked:
            self._answers.append(Answer(self._asked.popleft(), self.state()))
        while self._answers and not self._outputs and self._send(self._answers[0], block=False):
            self._answers.popleft()

    def wait(self) -> None:
        unsent = self._outputs or self._answers
        self._poll.poll(_RETRY_MILLISECONDS if unsent else None)
        with suppress(BlockingIOError):  # it was the channel
            os.eventfd_read(self._awake)

    def wake(self) -> None:
        os.eventfd_write(self._awake, 1)

    def finish(self) -> None:
        """Sends what is left."""
        self._send(Outputs(self._outputs))
        for answer in self._answers:
            self._send(answer)

    def _receive(self) -> ToEngine | None:
        try:
            received = self._channel.receive(block=False)
        except ChannelClosed:
            os._exit(1)
        return received[0] if received is not None else None

    def _send(self, message: FromEngine, *, block: bool = True) -> bool:
        try:
            return self._channel.send(message, block=block)
        except ChannelClosed:
            os._exit(1)

    def _commands(self, message: ToEngine) -> Sequence[EngineCommand]:
        assert self._engine is not None
        match message:
            case Submit():
                return self._submit(message)
            case Abort(request_id, error):
                abort = AbortRequest(request_id, error.rebuild_known("aborting a request"))
                if request_id not in self._building:
                    return [abort]
                self._building[request_id].commands.append(abort)
            case AskState(number):
                self._asked.append(number)
            case Check():
                self._answers.append(self._check(message, self._engine))
            case Close():
                self._engine.stop()
            case _:
                raise AssertionError(f"{type(message).__name__} after the start")
        return []

    def _check(self, message: Check, engine: Engine) -> Answer:
        try:
            engine.check(message.sampling, message.fields)
        except Exception as error:
            return Answer(message.number, error=ErrorData.of(error))
        return Answer(message.number)

    def _submit(self, message: Submit) -> Sequence[EngineCommand]:
        request = message.request()
        sink = SafeSink(request.id, self._sink(request.id))
        if not message.text_rules:
            return [SubmitRequest(request, sink)]
        self._building[request.id] = _Building(request, sink, [])
        if any(rules.structured is not None for rules in message.text_rules.values()):
            self._jobs.put((request.id, message.text_rules))
            return []
        return self._finish_building(request.id, self._build(message.text_rules))

    def _finish_building(self, request_id: str, rules: dict[str, HostRules] | OmniError) -> Sequence[EngineCommand]:
        building = self._building.pop(request_id)
        if isinstance(rules, OmniError):
            building.sink.finish(RequestFailed(rules))
            return []
        return [SubmitRequest(replace(building.request, rules=rules), building.sink), *building.commands]

    def _build(self, rules: dict[str, TextRules]) -> dict[str, HostRules] | OmniError:
        assert self._rules is not None, "the front end has text rules only with a vocabulary"
        try:
            return {name: self._rules.build(each) for name, each in rules.items()}
        except Exception as error:
            return known("engine", "building the rules of a request", error)

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
                case StageOutput(modality, GeneratedTokens() as tokens):
                    outputs(TokensOut(request_id, modality, tokens.ids, tokens.ends))
                case StageOutput(modality, AudioChunk() as audio):
                    outputs(AudioOut(request_id, modality, audio.samples, audio.sample_rate))
                case StageOutput(modality, meta):
                    outputs(OtherOut(request_id, modality, Typed(meta)))
                case StageFinished(stage, reason, counts, held):
                    outputs(StageFinishedOut(request_id, stage, reason, dict(counts), held))
                case RequestFinished():
                    outputs(FinishedOut(request_id))
                case RequestFailed(error):
                    outputs(FinishedOut(request_id, ErrorData.of(error)))

        return take

    def _add(self, output: Out) -> None:
        self._outputs.append(output)
