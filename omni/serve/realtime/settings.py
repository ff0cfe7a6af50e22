"""The settings of a session, or of one response."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from omni.api import GenerateArguments
from omni.errors import InputError, check_unicode, quoted
from omni.sampling import PARAMETERS
from omni.serve.body import convert, split_sampling
from omni.serve.models import check_model
from omni.serve.realtime.formats import FORMATS, PCM, AudioFormat
from omni.serve.realtime.ids import new_id
from omni.serve.realtime.truncation import Truncation, read_truncation
from omni.serve.realtime.turns import TurnDetection, Turns, read_turns
from omni.serve.realtime.unsupported import INPUT, OUTPUT, SESSION, without_unsupported
from omni.serve.sampling import stage_sampling
from omni.serve.server import Server

_NOT_SAMPLING = frozenset({"max_tokens", "logprobs", "prompt_logprobs"})
"""The first has another name, and events have no field for log-probabilities."""


class InputTranscription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the transcription, as in OpenAI's API. model: any name, as clients fill in one of OpenAI's; the session's model
    transcribes."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """modalities: of responses, one of `"audio"` and `"text"`. voice: as the client names it. transcription: of the user's speech,
    None for none. turn_detection: None if the client commits turns. max_output_tokens: of the stage that writes; None is the
    model's own bound. truncation: of conversations that are too long. params: sampling parameters of the main stage. sampling: of
    other stages. cache_salt: sessions of another do not share cached prompts."""

    model: str
    modalities: tuple[str, ...]
    instructions: str = ""
    input_format: AudioFormat = PCM
    output_format: AudioFormat = PCM
    voice: str | None = None
    transcription: InputTranscription | None = None
    turn_detection: Turns | None = field(default_factory=TurnDetection)
    max_output_tokens: int | None = None
    truncation: Truncation = "auto"
    params: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    cache_salt: str = field(default_factory=lambda: new_id("realtime"))

    @property
    def bytes(self) -> int:
        """Bytes of the fields whose size a client chooses."""
        own = (self.transcription, self.params, self.sampling)
        return len(self.instructions) + len(self.cache_salt) + len(msgspec.json.encode(own))


class _Format(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: str
    rate: int | None = None

    def read(self, at: str) -> AudioFormat:
        found = FORMATS.get(self.type)
        if found is None:
            raise InputError(f"{at}.type", f"{quoted(self.type)} is unknown", f"use one of {', '.join(FORMATS)}")
        if self.rate not in (None, found.rate):
            raise InputError(f"{at}.rate", f"{self.rate} is not supported", f"use {found.rate}, or leave it out")
        return found


class _VoiceRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str


class _Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """transcription, turn_detection: null is a value of its own."""

    format: _Format | None = None
    transcription: InputTranscription | UnsetType | None = UNSET
    turn_detection: dict[str, Any] | UnsetType | None = UNSET


class _Output(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: _Format | None = None
    voice: str | _VoiceRef | None = None


class _Audio(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    input: dict[str, Any] | None = None
    output: dict[str, Any] | None = None


class _Session(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that are left out or null stay as they are."""

    type: str = "realtime"
    model: str | None = None
    output_modalities: tuple[str, ...] | None = None
    instructions: str | None = None
    audio: _Audio | None = None
    max_output_tokens: int | str | None = None
    truncation: Any = None
    sampling: dict[str, dict[str, Any]] | None = None
    cache_salt: str | None = None


def first_settings(server: Server, model: str) -> Settings:
    modalities = ("audio",) if "audio" in server.omni.modalities else ("text",)
    return Settings(model=model, modalities=modalities)


def updated(server: Server, before: Settings, given: Mapping[str, Any], at: str) -> Settings:
    """Returns `before`, changed by the fields `given` in an event. at: the path of these fields in the event, for errors. Raises
    InputError; nothing is changed then."""
    fields, params = split_sampling(without_unsupported(given, SESSION, at), _NOT_SAMPLING)
    read = convert(fields, _Session, at)
    params = {name: value for name, value in params.items() if value is not None}
    after = replace(before, params={**before.params, **params})
    if read.type != "realtime":
        raise InputError(f"{at}.type", f"{quoted(read.type)} is not supported", 'use "realtime"')
    if read.model is not None:
        check_model(server, read.model)
        after = replace(after, model=read.model)
    if read.output_modalities is not None:
        after = replace(after, modalities=_modalities(server, read.output_modalities, f"{at}.output_modalities"))
    if read.instructions is not None:
        check_unicode(read.instructions, f"{at}.instructions")
        after = replace(after, instructions=read.instructions)
    if read.max_output_tokens is not None:
        most = _max_tokens(read.max_output_tokens, f"{at}.max_output_tokens")
        after = replace(after, max_output_tokens=most)
    if read.truncation is not None:
        after = replace(after, truncation=read_truncation(server, read.truncation, f"{at}.truncation"))
    if read.sampling is not None:
        after = replace(after, sampling=read.sampling)
    if read.cache_salt is not None:
        after = replace(after, cache_salt=read.cache_salt)
    if read.audio is not None:
        after = _with_input(server, after, read.audio.input or {}, f"{at}.audio.input")
        after = _with_output(server, after, read.audio.output or {}, f"{at}.audio.output")
    arguments(server, after, at)
    return after


def arguments(server: Server, settings: Settings, at: str = "session") -> GenerateArguments:
    """Returns the arguments of `generate` for a response. Raises InputError."""
    omni = server.omni
    try:
        sampling = stage_sampling(omni, settings.params, settings.sampling, max_tokens=settings.max_output_tokens)
    except InputError as error:
        raise InputError(f"{at}.{error.field}", error.problem, error.remedy, error.operator_remedy) from error
    for stage, params in sampling.items():
        params.check(at if stage == omni.pipeline.main_stage else f"{at}.sampling.{stage}")
    speaks = "audio" in settings.modalities
    known = {output.modality for output in omni.pipeline.outputs}
    modalities = tuple(name for name in ("text", "audio") if name in known) if speaks else settings.modalities
    made = GenerateArguments(modalities=modalities, sampling=sampling, cache_salt=settings.cache_salt)
    if speaks:
        made["voice"] = server.voices.find(settings.voice)
    return made


def described(settings: Settings) -> dict[str, Any]:
    """The session as events have it: OpenAI's type has no field for sampling."""
    turns, transcription = settings.turn_detection, settings.transcription
    return {
        "type": "realtime",
        "model": settings.model,
        "output_modalities": list(settings.modalities),
        "instructions": settings.instructions,
        "audio": {
            "input": {
                "format": described_format(settings.input_format),
                "transcription": msgspec.to_builtins(transcription) if transcription is not None else None,
                "noise_reduction": None,
                "turn_detection": msgspec.to_builtins(turns) if turns is not None else None,
            },
            "output": {**described_output(settings), "speed": 1.0},
        },
        "tools": [],
        "tool_choice": "auto",
        "max_output_tokens": settings.max_output_tokens or "inf",
        "tracing": None,
        "truncation": msgspec.to_builtins(settings.truncation),
    }


def described_output(settings: Settings) -> dict[str, Any]:
    voice = {} if settings.voice is None else {"voice": settings.voice}
    return {"format": described_format(settings.output_format), **voice}


def described_format(format: AudioFormat) -> dict[str, Any]:
    return {"type": format.type, "rate": format.rate} if format is PCM else {"type": format.type}


def _modalities(server: Server, given: tuple[str, ...], at: str) -> tuple[str, ...]:
    known = [name for name in ("audio", "text") if any(o.modality == name for o in server.omni.pipeline.outputs)]
    if len(given) != 1 or given[0] not in known:
        remedy = f"use {' or '.join(f'[{quoted(name)}]' for name in known)}; speech comes with its transcript"
        raise InputError(at, f"{quoted(list(given))} is not given here", remedy)
    return given


def _max_tokens(given: int | str, at: str) -> int | None:
    if given == "inf":
        return None
    if not isinstance(given, int) or not PARAMETERS["max_tokens"].valid(given):
        raise InputError(at, f"{quoted(given)} is out of range", f'{PARAMETERS["max_tokens"].remedy}, or "inf"')
    return given


def _with_input(server: Server, before: Settings, given: Mapping[str, Any], at: str) -> Settings:
    read = convert(without_unsupported(given, INPUT, at), _Input, at)
    after = before
    if read.format is not None:
        after = replace(after, input_format=read.format.read(f"{at}.format"))
    if read.transcription is not UNSET:
        if read.transcription is not None and server.omni.pipeline.text_stage is None:
            raise InputError(f"{at}.transcription", "is given, but this model writes no text", "leave it out")
        after = replace(after, transcription=read.transcription)
    if read.turn_detection is None:
        after = replace(after, turn_detection=None)
    elif isinstance(read.turn_detection, dict):
        field = f"{at}.turn_detection"
        fields = {name: value for name, value in read.turn_detection.items() if value is not None}
        after = replace(after, turn_detection=read_turns(fields, field))
    return after


def _with_output(server: Server, before: Settings, given: Mapping[str, Any], at: str) -> Settings:
    read = convert(without_unsupported(given, OUTPUT, at), _Output, at)
    after = before
    if read.format is not None:
        after = replace(after, output_format=read.format.read(f"{at}.format"))
    if read.voice is not None:
        name = read.voice.id if isinstance(read.voice, _VoiceRef) else read.voice
        voice = server.voices.find(name)
        if voice is not None and voice not in server.omni.voices:
            known = ", ".join(server.omni.voices)
            remedy = f"use one of {known}, or a name of OpenAI's" if known else "leave it out"
            raise InputError(f"{at}.voice", f"{quoted(name)} is unknown", remedy)
        after = replace(after, voice=name)
    return after
