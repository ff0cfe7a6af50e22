"""Events of the server, as structs of OpenAI's types."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from omni.serve.audio.transcription import TranscriptionUsage
from omni.serve.realtime.ids import new_id


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an item's content. audio: sound in base64."""

    type: str
    text: str | UnsetType = UNSET
    transcript: str | UnsetType | None = UNSET
    audio: str | UnsetType = UNSET
    image_url: str | UnsetType = UNSET


class MessageItem(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    role: str
    status: str
    content: list[ContentPart]
    object: str = "realtime.item"
    type: str = "message"


class RealtimeError(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    code: str | None
    param: str | None
    event_id: str | None


class TranscriptionError(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    code: str | None
    param: str | None


class StatusError(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    code: str | None


class StatusDetails(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    reason: str | UnsetType = UNSET
    error: StatusError | UnsetType = UNSET


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """cached_tokens: of the prompt, found in the prefix cache."""

    cached_tokens: int


class OutputTokens(msgspec.Struct, frozen=True, kw_only=True):
    text_tokens: int
    audio_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    total_tokens: int
    input_tokens: int
    output_tokens: int
    input_token_details: InputTokens
    output_token_details: OutputTokens


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    status: str
    status_details: StatusDetails | None
    output: list[MessageItem]
    conversation_id: str | None
    output_modalities: list[str]
    max_output_tokens: int | str
    audio: dict[str, Any]
    metadata: dict[str, str] | None
    usage: ResponseUsage | None
    object: str = "realtime.response"


class ServerEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    event_id: str = msgspec.field(default_factory=lambda: new_id("event"))


class ErrorEvent(ServerEvent, frozen=True, kw_only=True, tag="error"):
    error: RealtimeError


class SessionCreated(ServerEvent, frozen=True, kw_only=True, tag="session.created"):
    session: dict[str, Any]


class SessionUpdated(ServerEvent, frozen=True, kw_only=True, tag="session.updated"):
    session: dict[str, Any]


class AudioCommitted(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.committed"):
    item_id: str
    previous_item_id: str | None


class AudioCleared(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.cleared"):
    pass


class SpeechStarted(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.speech_started"):
    item_id: str
    audio_start_ms: int


class SpeechStopped(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.speech_stopped"):
    item_id: str
    audio_end_ms: int


class ItemAdded(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.added"):
    item: MessageItem
    previous_item_id: str | None


class ItemDone(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.done"):
    item: MessageItem
    previous_item_id: str | None


class ItemRetrieved(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.retrieved"):
    item: MessageItem


class ItemDeleted(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.deleted"):
    item_id: str


class ItemTruncated(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.truncated"):
    item_id: str
    content_index: int
    audio_end_ms: int


class _TranscriptionEvent(ServerEvent, frozen=True, kw_only=True):
    """About the one part of an item of the user."""

    item_id: str
    content_index: int = 0


class TranscriptionPiece(
    _TranscriptionEvent, frozen=True, kw_only=True, tag="conversation.item.input_audio_transcription.delta"
):
    delta: str


class TranscriptionCompleted(
    _TranscriptionEvent, frozen=True, kw_only=True, tag="conversation.item.input_audio_transcription.completed"
):
    transcript: str
    usage: TranscriptionUsage


class TranscriptionFailed(
    _TranscriptionEvent, frozen=True, kw_only=True, tag="conversation.item.input_audio_transcription.failed"
):
    error: TranscriptionError


class ResponseCreated(ServerEvent, frozen=True, kw_only=True, tag="response.created"):
    response: ResponseObject


class ResponseDone(ServerEvent, frozen=True, kw_only=True, tag="response.done"):
    response: ResponseObject


class _OutputEvent(ServerEvent, frozen=True, kw_only=True):
    """About the one item of a response."""

    response_id: str
    output_index: int = 0


class OutputItemAdded(_OutputEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    item: MessageItem


class OutputItemDone(_OutputEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    item: MessageItem


class _PartEvent(_OutputEvent, frozen=True, kw_only=True):
    """About its one part of content."""

    item_id: str
    content_index: int = 0


class PartAdded(_PartEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    part: ContentPart


class PartDone(_PartEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    part: ContentPart


class TextDelta(_PartEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    delta: str


class TextDone(_PartEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    text: str


class TranscriptDelta(_PartEvent, frozen=True, kw_only=True, tag="response.output_audio_transcript.delta"):
    delta: str


class TranscriptDone(_PartEvent, frozen=True, kw_only=True, tag="response.output_audio_transcript.done"):
    transcript: str


class AudioDelta(_PartEvent, frozen=True, kw_only=True, tag="response.output_audio.delta"):
    """A piece of an answer's sound. delta: the bytes in base64."""

    delta: str


class AudioDone(_PartEvent, frozen=True, kw_only=True, tag="response.output_audio.done"):
    pass
