"""Events of a client, as structs of OpenAI's types."""

from typing import Any, get_args

import msgspec

from omni.errors import InputError, OmniError, quoted
from omni.serve.body import check_surrogates, convert, decode_json


class ClientEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """event_id: the client's, named in an error about the event."""

    event_id: str | None = None


class SessionUpdate(ClientEvent, frozen=True, kw_only=True, tag="session.update"):
    session: dict[str, Any]


class AppendAudio(ClientEvent, frozen=True, kw_only=True, tag="input_audio_buffer.append"):
    """Appends sound to the input buffer. audio: the bytes in base64."""

    audio: str


class CommitAudio(ClientEvent, frozen=True, kw_only=True, tag="input_audio_buffer.commit"):
    pass


class ClearAudio(ClientEvent, frozen=True, kw_only=True, tag="input_audio_buffer.clear"):
    pass


class CreateItem(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.create"):
    """previous_item_id: `"root"` is the start, None the end."""

    item: dict[str, Any]
    previous_item_id: str | None = None


class RetrieveItem(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.retrieve"):
    item_id: str


class DeleteItem(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.delete"):
    item_id: str


class TruncateItem(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.truncate"):
    item_id: str
    content_index: int
    audio_end_ms: int


class CreateResponse(ClientEvent, frozen=True, kw_only=True, tag="response.create"):
    response: dict[str, Any] | None = None


class CancelResponse(ClientEvent, frozen=True, kw_only=True, tag="response.cancel"):
    response_id: str | None = None


AnyClientEvent = (
    SessionUpdate
    | AppendAudio
    | CommitAudio
    | ClearAudio
    | CreateItem
    | RetrieveItem
    | DeleteItem
    | TruncateItem
    | CreateResponse
    | CancelResponse
)


_TYPES = tuple(kind.__struct_config__.tag for kind in get_args(AnyClientEvent))


class WrongEvent(Exception):
    """An event that is refused. error: why. event_id: the client's."""

    def __init__(self, error: OmniError, event_id: str | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.event_id = event_id


def read_event(text: str) -> AnyClientEvent:
    """Decodes an event. Raises WrongEvent."""
    try:
        value = decode_json(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        try:
            check_surrogates(text)
        except InputError as found:
            raise WrongEvent(found, None) from error
        raise WrongEvent(InputError("event", "is not JSON", "send a JSON object"), None) from error
    if not isinstance(value, dict):
        raise WrongEvent(InputError("event", f"is a JSON {type(value).__name__}", "send a JSON object"), None)
    event_id = value.get("event_id")
    try:
        if "type" not in value:
            raise InputError("type", "is missing", "give the event's type")
        if value["type"] not in _TYPES:
            raise InputError("type", f"{quoted(value['type'])} is not known here", f"use one of {', '.join(_TYPES)}")
        event: AnyClientEvent = convert(value, AnyClientEvent)  # type: ignore[arg-type]
    except InputError as error:
        raise WrongEvent(error, event_id if isinstance(event_id, str) else None) from error
    return event
