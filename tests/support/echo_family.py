"""The model family of `support.echo_plugin`: `writer` gives the prompt back a token per tick, `singer` sings the writer's text.

A token is a character. Some prompts are special: see `EchoFrontend.prepare`, and the constants.
"""

import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from omni.checkpoint import Checkpoint
from omni.device import COMPLETED
from omni.engine.orchestrator import Orchestrator
from omni.errors import InputError, quoted
from omni.frontend.base import AudioPart, Chat, Frontend, ImagePart, Prepared, TextDecoder, TextPart
from omni.frontend.vocabulary import Vocabulary
from omni.payload import AudioChunk, GeneratedTokens, LogprobsChunk, Payload
from omni.pipeline import Edge, Pipeline, PipelineOutput, Stage
from omni.plugin.manager import Plugins, load_plugins
from omni.sampling import HostRules, LogitsEdit, SamplingParams, StopVerdict
from omni.stage import Feed, MailboxWorker, Open, PlainStage, Produced, StageContext, StageUsage
from tests.support.echo_plugin import POINT
from tests.support.entry_points import own_entry_points
from tests.support.patience import PATIENCE_SECONDS

BREAK = "\x18"
"""The writer fails for a request that reaches this character."""
EXPLODE = "\x1b"
"""The writer is closed when a request reaches this character."""
BREAK_LOOP = "\x1c"
"""The engine's loop fails when a request reaches this character."""
HANG = "\x11"
"""The engine's loop hangs when a request reaches this character."""
SAMPLE = "\x1a"
"""Written as the number of the sample: 0, 1, ..."""
BREAK_OTHERS = "\x19"
"""The writer fails for a request that reaches this character, unless it is the first sample."""
SAMPLES = 80
RATE = 8000

GATES: defaultdict[str, threading.Event] = defaultdict(threading.Event)
"""The gates of prompts `"wait NAME"` in the front end."""


OPENED: deque[Open] = deque(maxlen=256)
"""The last requests of the writers."""


def pitch(character: str) -> float:
    """The value of the samples that are sung for a character."""
    return np.float32(ord(character) / 0x110000).item()


def write_checkpoint(directory: Path, *, seed: int = 0, speaks: bool = True) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "echo", "speaks": speaks, "seed": seed}))


class EchoOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """tokens_per_tick: of each request. max_length: of an answer, as of a model with a context. sampling: there, so that requests
    may give some."""

    tokens_per_tick: int = 1
    max_length: int = 10**12
    sampling: SamplingParams = SamplingParams()


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    ids: tuple[int, ...]


def pipeline(checkpoint: Checkpoint) -> Pipeline:
    speaks = checkpoint.config["speaks"]
    writer = Stage(name="writer", kind="echo", model="tests.support.echo_family:Prompt", options=EchoOptions())
    singer = Stage(name="singer", kind="tone", model="tests.support.echo_family:Prompt", options=EchoOptions())
    text, audio = PipelineOutput(modality="text", stage="writer"), PipelineOutput(modality="audio", stage="singer")
    return Pipeline(
        family="echo",
        stages=(writer, singer) if speaks else (writer,),
        edges=(Edge(producer="writer", consumer="singer"),) if speaks else (),
        outputs=(text, audio) if speaks else (text,),
        frontend="tests.support.echo_family:EchoFrontend",
    )


class CharacterDecoder:
    """Keeps every second character back until the next call."""

    def __init__(self) -> None:
        self._kept = ""

    def push(self, ids: Sequence[int]) -> str:
        text = self._kept + "".join(map(chr, ids))
        self._kept = "" if len(text) > 1 else text
        return "" if self._kept else text

    def finish(self) -> str:
        text, self._kept = self._kept, ""
        return text


LETTERS = Vocabulary(tokens=tuple(chr(i).encode() for i in range(0x400)))


class EchoFrontend(Frontend):
    voices = ("low", "high")
    takes_raw_prompts = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._speaks = checkpoint.config["speaks"]

    def text_decoder(self) -> TextDecoder | None:
        return CharacterDecoder()

    def vocabulary(self) -> Vocabulary:
        return LETTERS

    def prepare(self, chat: Chat) -> Prepared:
        """`"wait NAME"` waits for a gate, `"crash"` raises another error than an OmniError, an empty text is refused."""
        if chat.voice not in (None, *self.voices):
            raise InputError("voice", f"{quoted(chat.voice)} is unknown", f"use one of {', '.join(self.voices)}")
        text = "|".join(_read(part) for message in chat.messages for part in message.content)
        if text.startswith("wait "):
            assert GATES[text.removeprefix("wait ")].wait(2 * PATIENCE_SECONDS), "nobody opened the gate"
        if text == "crash":
            raise ValueError("a bug")
        if not text:
            raise InputError("messages", "hold no text", "say something")
        ids = tuple(map(ord, text))
        return Prepared(inputs={"writer": [Payload(Prompt(ids=ids))]}, prompt_tokens=len(ids))


def _read(part: TextPart | AudioPart | ImagePart) -> str:
    match part:
        case TextPart():
            return part.text
        case AudioPart():
            return f"<{len(part.samples)} samples>"
        case ImagePart():
            return f"<{part.image.width}x{part.image.height}>"


@dataclass(slots=True)
class _Echo:
    id: str
    sampling: SamplingParams
    sample: int
    rules: HostRules
    ids: tuple[int, ...] = ()
    written: int = 0
    withheld: list[int] = dataclass_field(default_factory=list)


def _lowest(edit: LogitsEdit) -> int:
    assert edit.allowed is not None
    bits = np.unpackbits(edit.allowed.view(np.uint8), bitorder="little")
    return int(np.flatnonzero(bits)[0])


def _break_loop() -> None:
    """Fails the engine's loop, in this process and once: no fault of a plugin ends it."""
    tick = Orchestrator.tick

    def fail(self: Orchestrator) -> bool:
        Orchestrator.tick = tick  # type: ignore[method-assign]
        raise RuntimeError("boom")

    Orchestrator.tick = fail  # type: ignore[method-assign]


class EchoWorker(MailboxWorker[_Echo]):
    """Writes the prompt, repeatedly up to `max_tokens`; with a structured output, the lowest ids that it allows instead.
    Keeps `stop`. The log-probability of a token is its index negated, and the likeliest ids are those from 0 on; both are
    reported a token late."""

    def __init__(self, tokens_per_tick: int, max_length: int = 10**12) -> None:
        super().__init__("writer")
        self._tokens_per_tick = tokens_per_tick
        self._max_length = max_length
        self.closed = False
        self.opened = OPENED

    def open(self, message: Open) -> _Echo:
        self.opened.append(message)
        return _Echo(message.request_id, message.sampling, message.sample_index, message.rules)

    def feed(self, request: _Echo, message: Feed) -> None:
        assert isinstance(message.payload.meta, Prompt)
        request.ids = message.payload.meta.ids

    def end(self, request: _Echo, source: str) -> None: ...

    def pause(self, request: _Echo) -> None: ...

    def resume(self, request: _Echo) -> None: ...

    def drop(self, request: _Echo) -> None: ...

    def advance(self) -> bool:
        for request in [request for request in self.requests.values() if request.ids]:
            for _ in range(self._tokens_per_tick):
                if request.id in self.requests:
                    self._write(request)
        return bool(self.requests)

    def _write(self, request: _Echo) -> None:
        token = request.ids[request.written % len(request.ids)]
        complete = False
        for grammar in request.rules.host_processors:
            token = _lowest(grammar.edit())
            complete = grammar.push(token)
        if chr(token) == EXPLODE:
            raise RuntimeError("boom")
        if chr(token) == HANG:
            time.sleep(PATIENCE_SECONDS)
        if chr(token) == BREAK_LOOP:
            _break_loop()
            return
        if chr(token) == BREAK:
            self.fail(request.id, "writing", ValueError("a broken character"))
            return
        if chr(token) == BREAK_OTHERS and request.sample:
            self.fail(request.id, "writing", ValueError("another sample"))
            return
        token = ord("0") + request.sample if chr(token) == SAMPLE else token
        request.withheld.append(token)
        request.written += 1
        verdict = StopVerdict(0, False) if request.rules.stops is None else request.rules.stops.push(token)
        self._give(request, len(request.withheld) - verdict.withheld)
        most = request.sampling.max_tokens
        end = min(len(request.ids) if most is None else most, self._max_length)
        if complete or verdict.stopped or request.written == end:
            if not verdict.stopped:
                self._give(request, len(request.withheld))
            for index in range(max(request.written - 2, 0), request.written):
                self._score(request, index)
            whole = most is None and end == len(request.ids)
            reason = "stop" if complete or verdict.stopped or whole else "length"
            self.finish(request.id, reason, {"tokens": request.written}, tuple(request.withheld))
        elif request.written > 1:
            self._score(request, request.written - 2)

    def _give(self, request: _Echo, count: int) -> None:
        for token in request.withheld[:count]:
            self.outbox.append(Produced(request.id, Payload(GeneratedTokens(ids=(token,))), COMPLETED))
        del request.withheld[:count]

    def _score(self, request: _Echo, index: int) -> None:
        top = request.sampling.logprobs
        if top is not None:
            ids = np.array([[request.ids[index % len(request.ids)], *range(top)]])
            scores = np.array([[-index, *(-i for i in range(top))]], np.float32)
            chunk = LogprobsChunk(first=index, ids=ids, logprobs=scores, ranks=np.array([index + 1]))
            self.outbox.append(Produced(request.id, Payload(chunk), COMPLETED, for_user=True))

    def check(self, sampling: SamplingParams, field: str) -> None:
        for token in sampling.stop_token_ids or ():
            if token >= len(LETTERS.tokens):
                raise InputError(f"{field}.stop_token_ids", f"{token} is not a letter", "use ids of letters")

    def usage(self) -> StageUsage:
        return {"requests": len(self.requests)}

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self.requests.clear()


class ToneWorker(MailboxWorker[list[str]]):
    """Sings each token: `SAMPLES` samples whose value stands for the character. Its requests are their ids."""

    def __init__(self) -> None:
        super().__init__("singer")

    def open(self, message: Open) -> list[str]:
        return [message.request_id]

    def feed(self, request: list[str], message: Feed) -> None:
        assert isinstance(message.payload.meta, GeneratedTokens)
        for token in message.payload.meta.ids:
            samples = np.full(SAMPLES, pitch(chr(token)), np.float32)
            samples.flags.writeable = False
            chunk = AudioChunk(samples=samples, sample_rate=RATE)
            self.outbox.append(Produced(request[0], Payload(chunk), COMPLETED))
        message.release(COMPLETED)

    def end(self, request: list[str], source: str) -> None:
        self.finish(request[0], "stop", {"samples": SAMPLES})

    def pause(self, request: list[str]) -> None: ...

    def resume(self, request: list[str]) -> None: ...

    def drop(self, request: list[str]) -> None: ...

    def advance(self) -> bool:
        return False

    def check(self, sampling: SamplingParams, field: str) -> None:
        """It does not sample, but a request's one seed is for every stage."""
        super().check(msgspec.structs.replace(sampling, seed=None), field)

    def usage(self) -> StageUsage:
        return {"requests": len(self.requests)}

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self.requests.clear()


class EchoKind:
    name = "echo"
    options = EchoOptions

    def load(self, context: StageContext) -> PlainStage:
        assert isinstance(context.options, EchoOptions)
        return PlainStage(EchoWorker(context.options.tokens_per_tick, context.options.max_length))


class ToneKind:
    name = "tone"
    options = EchoOptions

    def load(self, context: StageContext) -> PlainStage:
        return PlainStage(ToneWorker())


# Models of the echo family, and waiting for things that other threads do.


@cache
def echo_plugins() -> Plugins:
    return load_plugins([POINT, *own_entry_points("local", "shm", "cuda_ipc")])


def echo_model(directory: Path, *, speaks: bool = True) -> Path:
    """A checkpoint folder."""
    write_checkpoint(directory / "echo", speaks=speaks)
    return directory / "echo"


def eventually(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> bool:
    """Whether `condition` becomes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True
