"""Converts OpenAI's messages to omni's."""

from collections.abc import Sequence
from typing import Any

import msgspec

from omni.errors import InputError
from omni.serve.transcripts import Transcripts

_DETAILS = ("low", "high", "original")
"""Values of a picture's `detail`, beside "auto"."""


class AudioRef(msgspec.Struct, frozen=True, kw_only=True):
    """The sound of an earlier answer. Clients send back all of `message.audio`; its transcript is looked up by its id."""

    id: str


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """name: of the participant. audio: of an earlier answer. parsed: the SDK's reading of the content, which it adds to answers of
    `.parse()` and `.stream()`; ignored. refusal: of an answer of another server, in place of its content. Other fields of an
    earlier answer must be null or empty."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    audio: AudioRef | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None
    annotations: list[Any] | None = None
    parsed: Any = None


def omni_messages(messages: Sequence[ChatMessage], transcripts: Transcripts, *, names: bool) -> list[dict[str, Any]]:
    """Messages for the front end, which checks roles and parts. names: whether the front end accepts names; they are dropped
    otherwise. Raises InputError."""
    return [_message(message, f"messages[{index}]", transcripts, names) for index, message in enumerate(messages)]


def _message(message: ChatMessage, field: str, transcripts: Transcripts, names: bool) -> dict[str, Any]:
    for name in ("tool_calls", "function_call", "annotations"):
        if message.__getattribute__(name):
            raise InputError(f"{field}.{name}", "is not supported", "leave it out")
    if message.refusal and (message.role != "assistant" or message.content is not None):
        raise InputError(f"{field}.refusal", "replaces the content of an assistant's message", "leave it out")
    content: str | list[dict[str, Any]] | None = message.content
    if isinstance(content, list):
        content = [_part(part, message.role) for part in content]
    elif content is None and message.audio is not None:
        content = transcripts.find(message.audio.id, f"{field}.audio.id")
    elif content is None:
        content = message.refusal or None
    if content is None:
        raise InputError(f"{field}.content", "is missing", "give a string or a list of parts")
    # OpenAI's newer name of the role.
    read = {"role": "system" if message.role == "developer" else message.role, "content": content}
    return {**read, "name": message.name} if names and message.name is not None else read


def _part(part: dict[str, Any], role: str) -> dict[str, Any]:
    """A refusal counts as the assistant's text. Pictures are read in full: models have one resolution, which serves every `detail`
    alike. Breakpoints of a client's prompt cache have no effect: the prefix cache has blocks."""
    part = {name: value for name, value in part.items() if name != "prompt_cache_breakpoint"}
    if role == "assistant" and part.get("type") == "refusal":
        part["type"] = "text"
        if "refusal" in part:
            part["text"] = part.pop("refusal")
    picture = part.get("image_url")
    if isinstance(picture, dict) and picture.get("detail") in _DETAILS:
        part["image_url"] = {name: value for name, value in picture.items() if name != "detail"}
    return part
