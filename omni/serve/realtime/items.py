"""Items of a conversation: messages with their parts."""

import base64
from dataclasses import dataclass, field
from typing import Any

import msgspec

from omni.errors import InputError, check_unicode, counted, quoted
from omni.media.source import decode_base64
from omni.serve.body import convert
from omni.serve.realtime.formats import AudioFormat, Pcm
from omni.serve.realtime.ids import new_id
from omni.serve.realtime.server_events import ContentPart, MessageItem

LEAST_MS = 100
"""Minimum length of sound that a model hears, in milliseconds."""
_LONGEST_ID = 128
_FASTEST = 20
"""Characters of speech a second, where the length of the whole is not known: about those of a fast speaker."""


@dataclass(slots=True, eq=False)
class ItemPart:
    """kind: the type in events. text: of texts, and the transcript of sound, `""` without. sound: the user's speech, in `format`.
    url: of a picture. ms: of output audio, as it went to the client."""

    kind: str
    text: str = ""
    sound: Pcm | None = None
    format: AudioFormat | None = None
    url: str = ""
    ms: float = 0.0

    @property
    def bytes(self) -> int:
        return len(self.text) + len(self.url) + (self.sound.nbytes if self.sound is not None else 0)

    def described(self, *, whole: bool) -> ContentPart:
        """whole: include the sound of the user. The sound of the assistant is not kept."""
        match self.kind:
            case "input_audio" if whole and self.sound is not None and self.format is not None:
                data = base64.b64encode(self.format.encode(self.sound)).decode()
                return ContentPart(type=self.kind, audio=data, transcript=self.text or None)
            case "input_audio":
                return ContentPart(type=self.kind, transcript=self.text or None)
            case "input_image":
                return ContentPart(type=self.kind, image_url=self.url)
            case "output_audio":
                return ContentPart(type=self.kind, transcript=self.text)
            case _:
                return ContentPart(type=self.kind, text=self.text)

    def for_model(self) -> dict[str, Any] | None:
        """None for a text that is empty."""
        if self.sound is not None and self.format is not None:
            return {"type": "input_audio", "input_audio": (self.sound, self.format.rate)}
        if self.url:
            return {"type": "image_url", "image_url": {"url": self.url}}
        return {"type": "text", "text": self.text} if self.text else None


@dataclass(slots=True, eq=False)
class Item:
    """A message. role: `"user"`, `"system"` or `"assistant"`. status: `"in_progress"`, `"completed"` or `"incomplete"`."""

    role: str
    parts: list[ItemPart] = field(default_factory=list)
    id: str = field(default_factory=lambda: new_id("item"))
    status: str = "completed"

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def described(self, *, whole: bool = False) -> MessageItem:
        content = [part.described(whole=whole) for part in self.parts]
        return MessageItem(id=self.id, role=self.role, status=self.status, content=content)

    def for_model(self) -> dict[str, Any] | None:
        """The message for omni; None if it is empty."""
        parts = [part for part in (each.for_model() for each in self.parts) if part is not None]
        if not parts:
            return None
        if len(parts) == 1 and parts[0]["type"] == "text":
            return {"role": self.role, "content": parts[0]["text"]}
        return {"role": self.role, "content": parts}

    def truncate(self, index: int, end_ms: int) -> None:
        """Truncates the speech to the part that was played, and the text to the same share. Raises InputError."""
        if self.role != "assistant":
            raise InputError("item_id", "is not a message of the assistant", "truncate its messages only")
        if not 0 <= index < len(self.parts) or self.parts[index].kind != "output_audio":
            raise InputError("content_index", f"{index} is not a sound of the item", "use 0")
        part = self.parts[index]
        if end_ms < 0 or end_ms > round(part.ms):
            raise InputError("audio_end_ms", f"{end_ms} is out of range", f"the sound has {round(part.ms)} ms")
        count = round(len(part.text) * end_ms / part.ms) if part.ms else 0
        if self.status == "incomplete":
            # The text was ahead of the speech.
            count = min(count, _FASTEST * end_ms // 1000)
        part.text, part.ms = _words(part.text, count), end_ms


def _words(text: str, count: int) -> str:
    """The first characters, without a partial word at the end."""
    if count >= len(text) or text[count].isspace():
        return text[:count]
    space = max(text.rfind(" ", 0, count), text.rfind("\n", 0, count))
    return text[:space] if space >= 0 else text[:count]


class _GivenPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: str
    text: str | None = None
    audio: str | None = None
    transcript: str | None = None
    image_url: str | None = None
    detail: str | None = None


class _GivenItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: str
    content: list[_GivenPart]
    type: str = "message"
    id: str | None = None
    object: str | None = None
    status: str | None = None


_KINDS = {
    "system": ("input_text",),
    "user": ("input_text", "input_audio", "input_image"),
    "assistant": ("output_text", "output_audio"),
}


def read_item(given: dict[str, Any], format: AudioFormat, field: str, max_bytes: int) -> Item:
    """An item of a client. format: of sound in it. Raises InputError."""
    kind = given.get("type", "message")
    if kind != "message":
        raise InputError(f"{field}.type", f"{quoted(kind)} is not supported", 'use "message"')
    read = convert(given, _GivenItem, field)
    if read.role not in _KINDS:
        raise InputError(f"{field}.role", f"{quoted(read.role)} is unknown", f"use {' or '.join(_KINDS)}")
    if not read.content:
        raise InputError(f"{field}.content", "is empty", "give at least one part")
    item = Item(read.role)
    if read.id is not None:
        if not 0 < len(read.id) <= _LONGEST_ID or not read.id.isprintable():
            raise InputError(
                f"{field}.id", "is not a valid id", f"use at most {_LONGEST_ID} characters, or leave it out"
            )
        item.id = read.id
    for index, part in enumerate(read.content):
        item.parts.append(_part(part, read.role, format, f"{field}.content[{index}]", max_bytes))
    return item


def _part(part: _GivenPart, role: str, format: AudioFormat, field: str, max_bytes: int) -> ItemPart:
    if part.type not in _KINDS[role]:
        remedy = f"use {' or '.join(map(quoted, _KINDS[role]))}"
        raise InputError(f"{field}.type", f"{quoted(part.type)} is not supported in {role} messages", remedy)
    match part.type:
        case "input_audio":
            data = _given(part.audio, f"{field}.audio")
            return ItemPart(part.type, sound=read_sound(data, format, f"{field}.audio", max_bytes), format=format)
        case "input_image":
            url = _given(part.image_url, f"{field}.image_url")
            if not url:
                raise InputError(f"{field}.image_url", "is empty", "give a URL, or leave the part out")
            return ItemPart(part.type, url=url)
        case "output_audio":
            return ItemPart(part.type, _given(part.transcript, f"{field}.transcript"))
        case _:
            return ItemPart(part.type, _given(part.text, f"{field}.text"))


def _given(value: str | None, field: str) -> str:
    if value is None:
        raise InputError(field, "is missing", "give it")
    check_unicode(value, field)
    return value


def read_sound(data: str, format: AudioFormat, field: str, max_bytes: int, *, least_ms: int = LEAST_MS) -> Pcm:
    """Decodes the sound in `data`, base64. Raises InputError."""
    raw = decode_base64(data, field=field, max_bytes=max_bytes)
    if len(raw) % format.width:
        raise InputError(field, f"has {counted(len(raw), 'byte')}, no whole number of samples", "send 16-bit samples")
    if 1000 * len(raw) < least_ms * format.rate * format.width:
        raise InputError(field, f"is shorter than {least_ms} ms", "send more sound")
    return format.decode(raw)
