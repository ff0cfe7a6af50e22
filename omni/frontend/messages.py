"""OpenAI-style messages, media decoded.

    [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "cat.png"}},
        {"type": "input_audio", "input_audio": {"data": "<base64>", "format": "wav"}},
        {"type": "text", "text": "What do you see and hear?"},
    ]}]

Media may also be given as they are: a path, a URL, a data URI, bytes, an array, a tensor, `(array, rate)`, a PIL image.
A message may have a `name` beside its role where the model tells speakers apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from omni.errors import InputError
from omni.frontend.base import AudioPart, ImagePart, Message, Part, Role, TextPart
from omni.media import load_audio, load_image

_ROLES: tuple[str, ...] = get_args(Role)
_PARTS = ("text", "input_audio", "image_url")
_VIDEO = ("video", "video_url", "input_video")


def parse_messages(messages: object, *, sample_rate: int = 16000, names: bool = False) -> tuple[Message, ...]:
    """A chat from a list of messages, or from a string: one message of the user.

    sample_rate: Hz, of `AudioPart`s. names: whether messages may have one (`Frontend.sample_rate`, `Frontend.takes_names`).
    Reads and decodes media, so it may take a while. Raises InputError with the path of the field that is wrong.
    """
    if isinstance(messages, str):
        return (Message("user", (_text(messages, "messages"),)),)
    if not _is_list(messages):
        remedy = "give a list of messages, or a string"
        raise InputError("messages", f"are a {type(messages).__name__}", remedy)
    if not messages:
        raise InputError("messages", "are empty", "give at least one message")
    read = _Reader(sample_rate, names)
    given = cast(Sequence[Any], messages)
    return tuple(read.message(message, f"messages[{index}]") for index, message in enumerate(given))


@dataclass(frozen=True, slots=True)
class _Reader:
    """What depends on the model."""

    sample_rate: int
    names: bool

    def message(self, message: object, field: str) -> Message:
        given = _fields(message, field, ("role", "content"), optional="name")
        if given["role"] not in _ROLES:
            raise InputError(f"{field}.role", f"{given['role']!r} is unknown", f"use one of {', '.join(_ROLES)}")
        name = self._name(given["name"], f"{field}.name") if "name" in given else None
        return Message(cast(Role, given["role"]), self._content(given["content"], f"{field}.content"), name)

    def _name(self, name: object, field: str) -> str | None:
        if name is None:
            return None
        if not self.names:
            raise InputError(field, "is given, but this model does not tell speakers apart by name", "leave it out")
        text = _text(name, field).text
        if not text:
            raise InputError(field, "is empty", "give a name, or leave it out")
        return text

    def _content(self, content: object, field: str) -> tuple[Part, ...]:
        if isinstance(content, str):
            return (_text(content, field),)
        if not _is_list(content):
            raise InputError(field, f"is a {type(content).__name__}", "give a string or a list of parts")
        if not content:
            raise InputError(field, "is empty", "give at least one part, or a string")
        parts = cast(Sequence[Any], content)
        return tuple(self._part(part, f"{field}[{index}]") for index, part in enumerate(parts))

    def _part(self, part: object, field: str) -> Part:
        if not isinstance(part, Mapping):
            raise InputError(
                field, f"is a {type(part).__name__}", 'give a dict such as {"type": "text", "text": "..."}'
            )
        kind = part.get("type")
        if kind in _VIDEO:
            remedy = "give single pictures as image_url parts and the sound as an input_audio part"
            raise InputError(f"{field}.type", "video input is not supported", remedy)
        if kind not in _PARTS:
            raise InputError(f"{field}.type", f"{kind!r} is unknown", f"use one of {', '.join(_PARTS)}")
        source, field = _fields(part, field, ("type", kind))[kind], f"{field}.{kind}"
        if kind == "input_audio":
            return AudioPart(load_audio(source, field=field, sample_rate=self.sample_rate), field)
        return _text(source, field) if kind == "text" else _image(source, field)


def _text(text: object, field: str) -> TextPart:
    if not isinstance(text, str):
        raise InputError(field, f"is a {type(text).__name__}", "give a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            field, f"is no valid Unicode: {error.reason} at {error.start}", "remove lone surrogates"
        ) from error
    return TextPart(text)


def _image(source: Any, field: str) -> ImagePart:
    if isinstance(source, Mapping):
        # OpenAI's clients fill `detail` in; a model here sees a picture in one way only.
        source = _fields({"detail": "auto", **source}, field, ("url", "detail"))
        if source["detail"] != "auto":
            raise InputError(f"{field}.detail", f"{source['detail']!r} is not supported", 'use "auto" or leave it out')
        source, field = source["url"], f"{field}.url"
    return ImagePart(load_image(source, field=field), field)


def _fields(value: object, field: str, names: tuple[str, ...], optional: str | None = None) -> Mapping[str, Any]:
    """`value` if it is a mapping with the keys `names`, and none but these and `optional`."""
    wanted = " and ".join(repr(name) for name in names)
    if not isinstance(value, Mapping):
        raise InputError(field, f"is a {type(value).__name__}", f"give a dict with {wanted}")
    for name in names:
        if name not in value:
            raise InputError(f"{field}.{name}", "is missing", f"give {wanted}")
    for key in value:
        if key not in names and key != optional:
            raise InputError(f"{field}.{key}", "is not known here", f"give {wanted} only")
    return value


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
