"""The structure of a chat: messages and their parts, checked before any medium is opened, so that a wrong one costs nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard, cast, get_args

from omni.errors import InputError, check_unicode, quoted, shortened
from omni.frontend.base import Role, TextPart

MAX_PARTS = 10_000
"""Parts that a chat may have, those of all its messages together. Each costs time before the request can be told to wait."""

_ROLES: tuple[str, ...] = get_args(Role)
_VIDEO = ("video", "video_url", "input_video")

MediumKind = Literal["input_audio", "image_url"]
_PARTS = ("text", *get_args(MediumKind))


@dataclass(frozen=True, slots=True)
class Medium:
    """source: as the user gave it. field: where it stands, the only name that errors have for it."""

    kind: MediumKind
    source: object
    field: str


@dataclass(frozen=True, slots=True)
class Outline:
    """One message."""

    role: Role
    content: tuple[TextPart | Medium, ...]
    name: str | None


def check_size(messages: object) -> None:
    """Raises InputError for a chat of more than `MAX_PARTS` parts; a message counts as one at least. Looks at nothing else."""
    parts = 0
    for message in messages if _is_list(messages) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        parts += max(1, len(content)) if _is_list(content) else 1
        if parts > MAX_PARTS:
            raise InputError("messages", f"have more than {MAX_PARTS} parts", "join texts, or send less in one request")


def outline(messages: object) -> tuple[Outline, ...]:
    """The messages of a chat; a string is one of the user. Raises InputError with the path of the field that is wrong."""
    if isinstance(messages, str):
        return (Outline("user", (_text(messages, "messages"),), None),)
    check_size(messages)
    given = _list(messages, "messages", "are", "give a list of messages, or a string")
    if not given:
        raise InputError("messages", "are empty", "give at least one message")
    return tuple(_message(message, f"messages[{index}]") for index, message in enumerate(given))


def _message(message: object, field: str) -> Outline:
    given = _fields(message, field, ("role", "content"), optional="name")
    role = given["role"]
    if not isinstance(role, str) or role not in _ROLES:
        raise InputError(f"{field}.role", f"{quoted(role)} is unknown", f"use one of {', '.join(_ROLES)}")
    name = given.get("name")
    if name is not None:
        name = _text(name, f"{field}.name").text
        if not name:
            raise InputError(f"{field}.name", "is empty", "give a name, or leave it out")
    return Outline(cast(Role, role), _content(given["content"], f"{field}.content"), name)


def _content(content: object, field: str) -> tuple[TextPart | Medium, ...]:
    if isinstance(content, str):
        return (_text(content, field),)
    parts = _list(content, field, "is", "give a string or a list of parts")
    if not parts:
        raise InputError(field, "is empty", "give at least one part, or a string")
    return tuple(_part(part, f"{field}[{index}]") for index, part in enumerate(parts))


def _part(part: object, field: str) -> TextPart | Medium:
    if not isinstance(part, Mapping):
        raise InputError(field, f"is a {_kind(part)}", 'give a dict such as {"type": "text", "text": "..."}')
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in _PARTS:
        if isinstance(kind, str) and kind in _VIDEO:
            remedy = "give single pictures as image_url parts and the sound as an input_audio part"
            raise InputError(f"{field}.type", "video input is not supported", remedy)
        raise InputError(f"{field}.type", f"{quoted(kind)} is unknown", f"use one of {', '.join(_PARTS)}")
    source, field = _fields(part, field, ("type", kind))[kind], f"{field}.{kind}"
    if kind == "text":
        return _text(source, field)
    if kind == "image_url" and isinstance(source, Mapping):
        source = _image(source, field)
    return Medium(cast(MediumKind, kind), source, field)


def _image(source: Mapping[Any, Any], field: str) -> object:
    # OpenAI's clients fill `detail` in; a model here sees a picture in one way only.
    given = _fields({"detail": "auto", **source}, field, ("url", "detail"))
    detail = given["detail"]
    if not isinstance(detail, str) or detail != "auto":
        raise InputError(f"{field}.detail", f"{quoted(detail)} is not supported", 'use "auto" or leave it out')
    return given["url"]


def _text(text: object, field: str) -> TextPart:
    if not isinstance(text, str):
        raise InputError(field, f"is a {_kind(text)}", "give a string")
    check_unicode(text, field)
    return TextPart(text)


def _fields(value: object, field: str, names: tuple[str, ...], optional: str | None = None) -> Mapping[str, Any]:
    """`value` if it is a mapping with the keys `names`, and none but these and `optional`."""
    wanted = " and ".join(repr(name) for name in names)
    if not isinstance(value, Mapping):
        raise InputError(field, f"is a {_kind(value)}", f"give a dict with {wanted}")
    for name in names:
        if name not in value:
            raise InputError(f"{field}.{name}", "is missing", f"give {wanted}")
    for key in value:
        if key not in names and key != optional:
            named = shortened(key) if isinstance(key, str) else quoted(key)
            raise InputError(f"{field}.{named}", "is not known here", f"give {wanted} only")
    return value


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview | range)


def _list(value: object, field: str, verb: str, remedy: str) -> Sequence[Any]:
    if not _is_list(value):
        raise InputError(field, f"{verb} a {_kind(value)}", remedy)
    return value


def _kind(value: object) -> str:
    return shortened(type(value).__name__)
