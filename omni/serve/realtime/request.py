"""The request of a `response.create` event."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from omni.errors import InputError
from omni.serve.body import convert
from omni.serve.realtime.conversation import Conversation, prompt
from omni.serve.realtime.items import Item, read_item
from omni.serve.realtime.settings import Settings, updated
from omni.serve.server import Server


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """The inputs of a response. items: the items of the prompt. kept: whether the answer becomes an item of the conversation.
    bytes: of the request's own items, which the session does not hold."""

    settings: Settings
    items: tuple[Item, ...]
    kept: bool
    metadata: dict[str, str] | None
    bytes: int


class _Own(msgspec.Struct, frozen=True, kw_only=True):
    """Fields beside the session's."""

    conversation: str | None = None
    input: list[dict[str, Any]] | None = None
    metadata: dict[str, str] | None = None


_OF_SESSIONS = ("type", "model", "cache_salt", "include", "tracing", "truncation")


def read_request(
    server: Server, settings: Settings, conversation: Conversation, given: Mapping[str, Any]
) -> ResponseRequest:
    """given: the event's `response`. Raises InputError."""
    own = convert({name: given[name] for name in _Own.__struct_fields__ if name in given}, _Own, "response")
    rest = {name: value for name, value in given.items() if name not in _Own.__struct_fields__}
    for name in _OF_SESSIONS:
        if name in rest:
            raise InputError(f"response.{name}", "is not known here", "leave it out; it is the session's")
    audio = rest.get("audio")
    if isinstance(audio, Mapping) and audio.get("input") is not None:
        raise InputError("response.audio.input", "is not known here", "leave it out; it is the session's")
    if own.conversation not in (None, "auto", "none"):
        raise InputError("response.conversation", "is unknown", 'use "auto" or "none"')
    items = conversation.items() if own.input is None else _input(server, settings, conversation, own.input)
    held = 0 if own.input is None else sum(item.bytes for item in items if not conversation.has(item.id))
    kept = own.conversation != "none"
    if kept:
        conversation.check_full()
    after = updated(server, settings, rest, "response")
    if not prompt(after.instructions, items)[0]:
        field = "conversation" if own.input is None else "response.input"
        raise InputError(field, "is empty, and there are no instructions", "add an item, or give instructions")
    held += max(after.bytes - settings.bytes, 0) + len(msgspec.json.encode(own.metadata or {}))
    return ResponseRequest(after, items, kept, own.metadata, held)


def _input(
    server: Server, settings: Settings, conversation: Conversation, given: list[dict[str, Any]]
) -> tuple[Item, ...]:
    items: list[Item] = []
    for index, each in enumerate(given):
        field = f"response.input[{index}]"
        if each.get("type") == "item_reference":
            items.append(conversation.get(str(each.get("id")), f"{field}.id"))
        else:
            most = server.options.max_session_bytes
            items.append(read_item(each, settings.input_format, field, most))
    return tuple(items)
