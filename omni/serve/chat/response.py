"""Answers, whole and in pieces, as structs of OpenAI's types."""

import msgspec
from msgspec import UNSET, UnsetType

from omni.serve.logprobs import ChoiceLogprobs
from omni.serve.usage import TokenUsage


class Audio(msgspec.Struct, frozen=True, kw_only=True):
    """data: base64 of a file."""

    id: str
    data: str
    expires_at: int
    transcript: str


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    content: str | None
    audio: Audio | UnsetType = UNSET
    role: str = "assistant"
    refusal: None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: ChoiceLogprobs | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: TokenUsage
    object: str = "chat.completion"
    system_fingerprint: None = None


class DeltaAudio(msgspec.Struct, frozen=True, kw_only=True):
    """Clients join texts and add numbers: `id` and `expires_at` are sent once."""

    id: str | UnsetType = UNSET
    data: str | UnsetType = UNSET
    transcript: str | UnsetType = UNSET
    expires_at: int | UnsetType = UNSET


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    audio: DeltaAudio | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: ChoiceLogprobs | None = None


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """usage: in every chunk if requested, null before the last."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: TokenUsage | UnsetType | None = UNSET
    object: str = "chat.completion.chunk"
    system_fingerprint: None = None
