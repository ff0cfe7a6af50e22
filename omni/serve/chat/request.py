"""The body of a request, and the call that it becomes."""

import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from omni.api import AsyncOmni, GenerateArguments
from omni.errors import InputError, quoted
from omni.sampling import StructuredOutput
from omni.serve.audio.encode import check_format
from omni.serve.audio.voices import VoiceName
from omni.serve.body import convert, split_sampling
from omni.serve.chat.messages import ChatMessage, omni_messages
from omni.serve.errors import Rename
from omni.serve.models import check_model
from omni.serve.sampling import names_in_body, samples_of, stage_sampling
from omni.serve.server import Server
from omni.serve.unsupported import without_unsupported


class AudioOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """format: of the answer's sound, `omni.serve.audio.encode`."""

    voice: VoiceName = None
    format: str = "wav"


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """include_obfuscation: padding against eavesdroppers, which this server does not add: only `False` is accepted."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def structured(self) -> StructuredOutput | None:
        """Returns the grammar that the format asks for, or None. Raises InputError for an unusable schema."""
        if self.type == "json_schema":
            if self.json_schema is None or self.json_schema.schema is None:
                raise InputError("response_format.json_schema.schema", "is missing", "give a JSON schema")
            return StructuredOutput(json=self.json_schema.schema)
        if self.json_schema is not None:
            raise InputError("response_format.json_schema", "is given", 'give the type "json_schema" with it')
        return StructuredOutput(json={"type": "object"}) if self.type == "json_object" else None


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields beside sampling parameters of omni (`omni.sampling.SamplingParams`), which may be in the body too.

    sampling: parameters of other stages, by stage. priority, cache_salt: as in `omni.api.GenerateArguments`.
    """

    model: str
    messages: tuple[ChatMessage, ...]
    modalities: tuple[str, ...] | None = None
    audio: AudioOptions | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    response_format: ResponseFormat | None = None
    sampling: dict[str, dict[str, Any]] = {}
    priority: int = 0
    cache_salt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A checked request. model: the name in the answer. format: the format of sound, None if none is requested. transcribes:
    whether the text is the sound's transcript. stage: the one whose end is the answer's."""

    model: str
    messages: list[dict[str, Any]]
    arguments: GenerateArguments
    rename: Rename
    format: str | None
    stream: bool
    include_usage: bool
    logprobs: bool
    samples: int
    stage: str | None
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))


_NAMES = {
    "structured": "response_format",
    "structured.json": "response_format.json_schema.schema",
    "logprobs": "top_logprobs",
    "voice": "audio.voice",
}


def read_call(server: Server, body: dict[str, Any]) -> ChatCall:
    """Raises InputError, naming the body's field."""
    fields, params = split_sampling(without_unsupported(body), frozenset({"logprobs", "prompt_logprobs"}))
    request = convert(fields, ChatRequest)
    check_model(server, request.model)
    omni = server.omni
    modalities = _modalities(omni, request)
    audio = request.audio or AudioOptions()
    speaks = "audio" in modalities
    if speaks:
        check_format(audio.format, "audio.format")
    most = _max_tokens(params, request)
    structured = request.response_format.structured() if request.response_format is not None else None
    if structured is not None and params.get("structured") is not None:
        raise InputError("structured", "is given beside response_format", "give one of them")
    sampling = stage_sampling(
        omni, params, request.sampling, max_tokens=most, structured=structured, logprobs=_logprobs(request)
    )
    renames = _NAMES | ({"max_tokens": "max_completion_tokens"} if request.max_completion_tokens is not None else {})
    if params.get("structured") is not None:
        renames = {name: other for name, other in renames.items() if not name.startswith("structured")}
    samples = samples_of(request.n)
    arguments = GenerateArguments(
        modalities=modalities, sampling=sampling, n=samples, priority=request.priority, cache_salt=request.cache_salt
    )
    if speaks:
        arguments["voice"] = server.voices.find(audio.voice)
    options = request.stream_options or StreamOptions()
    if request.stream_options is not None and not request.stream:
        raise InputError("stream_options", "is given without stream", "leave it out, or stream")
    return ChatCall(
        model=request.model,
        messages=omni_messages(request.messages, server.transcripts, names=omni.takes_names),
        arguments=arguments,
        rename=names_in_body(omni, renames),
        format=audio.format if speaks else None,
        stream=bool(request.stream),
        include_usage=bool(options.include_usage),
        logprobs=bool(request.logprobs),
        samples=samples,
        stage=omni.pipeline.main_stage,
    )


def _modalities(omni: AsyncOmni, request: ChatRequest) -> tuple[str, ...]:
    """The default is text, as with OpenAI, or the default of a model that writes no text. Speech comes with a transcript if the
    model writes text."""
    if request.modalities is None:
        return ("text",) if "text" in omni.modalities else omni.modalities
    if not request.modalities:
        raise InputError("modalities", "are empty", 'name "text", "audio" or both, or leave it out')
    for index, modality in enumerate(request.modalities):
        if modality not in ("text", "audio"):
            raise InputError(f"modalities[{index}]", f"{quoted(modality)} is not given here", 'use "text" and "audio"')
    if request.modalities == ("audio",) and any(output.modality == "text" for output in omni.pipeline.outputs):
        return ("text", "audio")
    return request.modalities


def _max_tokens(params: dict[str, Any], request: ChatRequest) -> int | None:
    old, new = params.get("max_tokens"), request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InputError("max_completion_tokens", "differs from max_tokens, its older name", "give one of them")
    return new


def _logprobs(request: ChatRequest) -> int | None:
    if request.top_logprobs is not None and not request.logprobs:
        raise InputError("top_logprobs", "is given without logprobs", "give logprobs: true")
    return (request.top_logprobs or 0) if request.logprobs else None
