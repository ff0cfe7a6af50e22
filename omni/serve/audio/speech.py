"""`POST /v1/audio/speech`: a text, spoken. In pieces, as they are made."""

import base64
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from starlette.responses import Response

from omni.api import GenerateArguments, Output, Usage
from omni.errors import InputError, quoted
from omni.serve.audio.encode import FORMATS, check_format
from omni.serve.audio.encoded_sound import EncodedSound
from omni.serve.audio.reading import check_speaks, reading_messages, reading_sampling
from omni.serve.audio.voices import VoiceName
from omni.serve.body import Call, convert, split_sampling
from omni.serve.errors import Rename
from omni.serve.limits import AnswerSlots
from omni.serve.models import check_model
from omni.serve.responses import StreamingBytes, event, event_stream
from omni.serve.sampling import names_in_body
from omni.serve.server import Server
from omni.utils.log import safe_logger

_log = safe_logger("omni.serve")

SPEECH_FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
"""OpenAI's, the default first."""

MAX_CHARACTERS = 4096
"""Maximum length of the text, that of OpenAI."""


class SpeechRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields beside sampling parameters of omni. sampling, priority, cache_salt: as in chats."""

    model: str
    input: str
    voice: VoiceName = None
    instructions: str | None = None
    response_format: str | None = None
    speed: float | None = None
    stream_format: Literal["audio", "sse"] | None = None
    sampling: dict[str, dict[str, Any]] = {}
    priority: int = 0
    cache_salt: str = ""


class SpeechDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="speech.audio.delta"):
    """audio: base64 of the next piece of the file."""

    audio: str


class SpeechUsage(msgspec.Struct, frozen=True, kw_only=True):
    """output_tokens: of the speech."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class SpeechDone(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="speech.audio.done"):
    usage: SpeechUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechCall:
    """A checked request. format: a name in `FORMATS`. limited: stages whose tokens the client limits."""

    messages: list[dict[str, Any]]
    arguments: GenerateArguments
    rename: Rename
    format: str
    limited: frozenset[str]
    events: bool
    request_id: str


async def speech(server: Server, call: Call) -> Response:
    asked = read_call(server, await call.json(), call.id)
    if asked.events:
        return event_stream(_events(server, asked, call.slots), call.id, server.options.retry_after_seconds)
    return StreamingBytes(_file(server, asked, call.slots), FORMATS[asked.format].media_type)


def read_call(server: Server, body: dict[str, Any], request_id: str) -> SpeechCall:
    """Raises InputError, naming the body's field."""
    fields, params = split_sampling(body, frozenset())
    request = convert(fields, SpeechRequest)
    omni = server.omni
    check_model(server, request.model)
    check_speaks(omni)
    _check_text(request.input)
    if request.speed not in (None, 1.0):
        raise InputError(
            "speed", f"{quoted(request.speed)} is not supported", "use 1.0, or change the speed of the sound"
        )
    format = request.response_format or SPEECH_FORMATS[0]
    check_format(format, "response_format", SPEECH_FORMATS)
    messages = reading_messages(omni, request.input, request.instructions or "")
    sampling = reading_sampling(omni, request.input, params, request.sampling)
    arguments = GenerateArguments(
        # A request with text output ends after its text, so it is known whether the text is complete.
        modalities=("audio",) if omni.pipeline.text_stage is None else ("text", "audio"),
        voice=server.voices.find(request.voice),
        sampling=sampling,
        priority=request.priority,
        cache_salt=request.cache_salt,
    )
    names = names_in_body(omni, {"structured.choice": "input", "structured": "input"})

    def rename(field: str) -> str:
        return "input" if field.startswith(("messages", "prompt")) else names(field)

    return SpeechCall(
        messages=messages,
        arguments=arguments,
        rename=rename,
        format="pcm16" if format == "pcm" else format,
        limited=frozenset(stage for stage, each in sampling.items() if each.max_tokens is not None),
        events=request.stream_format == "sse",
        request_id=request_id,
    )


def _check_text(text: str) -> None:
    if not text.strip():
        raise InputError("input", "is empty", "give the text to speak")
    if len(text) > MAX_CHARACTERS:
        problem = f"has {len(text):,} characters"
        raise InputError("input", problem, f"use at most {MAX_CHARACTERS:,}: split it over several requests")


async def _file(server: Server, asked: SpeechCall, slots: AnswerSlots) -> AsyncGenerator[bytes]:
    """The file, in pieces. Runs the request from the first one on."""
    spoken = _Spoken(server, asked)
    async with server.generate("speech", asked.messages, asked.rename, slots=slots, **asked.arguments) as outputs:
        async for output in outputs:
            piece = await spoken.take(output)
            if piece:
                yield piece


async def _events(server: Server, asked: SpeechCall, slots: AnswerSlots) -> AsyncGenerator[bytes]:
    spoken = _Spoken(server, asked)
    async with server.generate("speech", asked.messages, asked.rename, slots=slots, **asked.arguments) as outputs:
        async for output in outputs:
            piece = await spoken.take(output)
            if piece:
                yield event(SpeechDelta(audio=base64.b64encode(piece).decode()))
    yield event(SpeechDone(usage=spoken.usage()))


class _Spoken:
    """A file so far."""

    def __init__(self, server: Server, asked: SpeechCall) -> None:
        self._text_stage = server.omni.pipeline.text_stage
        self._request_id = asked.request_id
        self._sound = EncodedSound(asked.format, server.encoders)
        self._limited = asked.limited
        self._samples = 0
        self._usage = Usage(0, {})

    async def take(self, output: Output) -> bytes:
        """The bytes that are ready; with the last output, the rest. Raises InputError for a text that the model cannot write in
        full, and for one without a sound."""
        if self._text_stage is not None and output.finish_reasons.get(self._text_stage) == "length":
            raise InputError("input", "is longer than the model's context", "split it over several requests")
        piece = b""
        if output.audio is not None and output.sample_rate is not None:
            self._samples += len(output.audio)
            piece = await self._sound.push(output.audio, output.sample_rate)
        if not output.finished:
            return piece
        if not self._samples:
            raise InputError("input", "gave no sound", "give a longer text")
        for stage, reason in output.finish_reasons.items():
            if reason == "length" and stage not in self._limited:
                # Neither files nor OpenAI's events can report this.
                _log.warning("%s: the speech ended at %s.sampling.max_tokens", self._request_id, stage)
        self._usage = output.usage or self._usage
        return piece + await self._sound.finish()

    def usage(self) -> SpeechUsage:
        read = self._usage.prompt_tokens
        spoken = sum(count for stage, count in self._usage.tokens.items() if stage != self._text_stage)
        return SpeechUsage(input_tokens=read, output_tokens=spoken, total_tokens=read + spoken)
