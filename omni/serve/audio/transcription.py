"""`POST /v1/audio/transcriptions`: the speech in a file as text, whole or in pieces. The model is prompted for it, so it must
accept sound and write text."""

import asyncio
import io
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import soundfile
from msgspec import UNSET, UnsetType
from starlette.responses import PlainTextResponse, Response

from omni.api import GenerateArguments, Output, Usage
from omni.errors import InputError, quoted
from omni.serve.audio.upload import read_upload
from omni.serve.body import Call, convert, split_sampling
from omni.serve.errors import Rename
from omni.serve.limits import AnswerSlots
from omni.serve.models import check_model
from omni.serve.responses import event, event_stream, json_response
from omni.serve.sampling import names_in_body, stage_sampling
from omni.serve.server import Server
from omni.utils.log import safe_logger

_log = safe_logger("omni.serve")

_ASK = "Transcribe the speech. Answer with the words that are said, and nothing else."
_FORMATS = ("json", "text", "verbose_json")
_NOT_GIVEN = {
    "timestamp_granularities": "the model gives no timestamps",
    "include": "transcripts have no log-probabilities",
}
"""OpenAI's fields that are refused, and the reasons."""
GREEDY = 0.0
"""OpenAI's default temperature here."""
_BLOCK = 2**16
"""Samples that are read at a time."""


class TranscriptionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields beside the file and sampling parameters of omni. chunking_strategy: the sound is always read as a whole, which
    is OpenAI's `"auto"` up to its length."""

    model: str
    language: str = ""
    prompt: str = ""
    response_format: str = "json"
    stream: bool = False
    chunking_strategy: Literal["auto"] | None = None
    priority: int = 0
    cache_salt: str = ""


class TranscriptionUsage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tokens"):
    input_tokens: int
    output_tokens: int
    total_tokens: int


class DurationUsage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="duration"):
    seconds: float


class Transcription(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    usage: TranscriptionUsage


class VerboseTranscription(msgspec.Struct, frozen=True, kw_only=True):
    """A transcription with details. duration: in seconds. language: that of the request, else empty: the model does not report it.
    There are no timestamps."""

    text: str
    language: str
    duration: float
    usage: DurationUsage
    task: str = "transcribe"


class TranscriptionDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="transcript.text.delta"):
    delta: str


class TranscriptionDone(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="transcript.text.done"):
    text: str
    usage: TranscriptionUsage | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionCall:
    """A checked request. file: its content. limited: whether the client limits the tokens of the transcript."""

    file: bytes
    messages: list[dict[str, Any]]
    arguments: GenerateArguments
    rename: Rename
    format: str
    language: str
    limited: bool
    stream: bool
    request_id: str


def transcribing_messages(sound: object, language: str, prompt: str) -> list[dict[str, Any]]:
    """The chat whose answer is the transcript. sound: as the front end takes it. language, prompt: `""` without."""
    asked = [_ASK]
    if language:
        asked.append(f"The language is {language!r}.")
    if prompt:
        asked.append(f"This helps to understand it: {prompt}")
    content = [{"type": "input_audio", "input_audio": sound}, {"type": "text", "text": "\n".join(asked)}]
    return [{"role": "user", "content": content}]


async def transcriptions(server: Server, call: Call) -> Response:
    file, fields = await read_upload(call, server.options)
    asked = read_call(server, file, fields, call.id)
    if asked.stream:
        return event_stream(_events(server, asked, call.slots), call.id, server.options.retry_after_seconds)
    answer = _Answer(server, asked)
    async with server.generate(
        "transcription", asked.messages, asked.rename, slots=call.slots, **asked.arguments
    ) as outputs:
        async for output in outputs:
            answer.take(output)
    if asked.format == "text":
        return PlainTextResponse(answer.text)
    if asked.format == "json":
        return json_response(Transcription(text=answer.text, usage=answer.usage()))
    seconds = await asyncio.to_thread(_seconds, asked.file)
    usage = DurationUsage(seconds=seconds)
    verbose = VerboseTranscription(text=answer.text, language=asked.language, duration=seconds, usage=usage)
    return json_response(verbose)


def read_call(server: Server, file: bytes, given: Mapping[str, str], request_id: str) -> TranscriptionCall:
    """Raises InputError, naming the form's field."""
    for name, why in _NOT_GIVEN.items():
        for field in (name, f"{name}[]"):
            if field in given:
                raise InputError(field, f"{quoted(given[field])} is not given here, for {why}", "leave it out")
    fields, params = split_sampling(given, frozenset())
    request = convert(fields, TranscriptionRequest, strict=False)
    omni = server.omni
    check_model(server, request.model)
    if omni.pipeline.text_stage is None:
        raise InputError("model", "writes no text", "use a model that hears and writes")
    if request.response_format not in _FORMATS:
        problem = f"{quoted(request.response_format)} is not supported, as there are no timestamps"
        raise InputError("response_format", problem, f"use one of {', '.join(_FORMATS)}")
    names = names_in_body(omni, {})

    def rename(field: str) -> str:
        if field.startswith("messages[0].content[0]"):
            return "file"
        return "prompt" if field.startswith("messages") else names(field)

    params.setdefault("temperature", GREEDY)
    return TranscriptionCall(
        file=file,
        messages=transcribing_messages(file, request.language, request.prompt),
        arguments=GenerateArguments(
            modalities=("text",),
            sampling=stage_sampling(omni, params, {}, strict=False),
            priority=request.priority,
            cache_salt=request.cache_salt,
        ),
        rename=rename,
        format=request.response_format,
        language=request.language,
        limited=params.get("max_tokens") is not None,
        stream=request.stream,
        request_id=request_id,
    )


async def _events(server: Server, asked: TranscriptionCall, slots: AnswerSlots) -> AsyncGenerator[bytes]:
    answer = _Answer(server, asked)
    async with server.generate(
        "transcription", asked.messages, asked.rename, slots=slots, **asked.arguments
    ) as outputs:
        async for output in outputs:
            answer.take(output)
            if output.text:
                yield event(TranscriptionDelta(delta=output.text))
    yield event(TranscriptionDone(text=answer.text, usage=answer.usage()))


class _Answer:
    """The transcript so far."""

    def __init__(self, server: Server, asked: TranscriptionCall) -> None:
        self.text = ""
        self._stage = server.omni.pipeline.text_stage or ""
        self._request_id = asked.request_id
        self._limited = asked.limited
        self._usage = Usage(0, {})

    def take(self, output: Output) -> None:
        self.text += output.text
        self._usage = output.usage or self._usage
        if output.finished and not self._limited and output.finish_reasons.get(self._stage) == "length":
            # OpenAI's types cannot report this.
            _log.warning("%s: the transcript ended at %s.sampling.max_tokens", self._request_id, self._stage)

    def usage(self) -> TranscriptionUsage:
        read, written = self._usage.prompt_tokens, self._usage.tokens.get(self._stage, 0)
        return TranscriptionUsage(input_tokens=read, output_tokens=written, total_tokens=read + written)


def _seconds(file: bytes) -> float:
    """Duration of a file that the front end has read. It is counted, since headers may not state it."""
    count = 0
    with soundfile.SoundFile(io.BytesIO(file)) as sound:
        while read := len(sound.read(_BLOCK)):
            count += read
        return float(count / sound.samplerate)
