"""OpenAI-style messages, media decoded.

    [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "cat.png"}},
        {"type": "input_audio", "input_audio": {"data": "<base64>", "format": "wav"}},
        {"type": "text", "text": "What do you see and hear?"},
    ]}]

Media may also be given as they are: a path, a URL, a data URI, bytes, an array, a tensor, `(array, rate)`, a PIL image.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast, get_args

from omni.errors import InputError
from omni.frontend.base import AudioPart, ImagePart, Message, Part, Role, TextPart
from omni.media import load_audio, load_image

_ROLES: tuple[str, ...] = get_args(Role)
_VIDEO = ("video", "video_url", "input_video")


def parse_messages(messages: object) -> tuple[Message, ...]:
    """A chat from a list of messages, or from a string: one message of the user.

    Reads and decodes media, so it may take a while. Raises InputError with the path of the field that is wrong.
    """
    if isinstance(messages, str):
        return (Message("user", (_text(messages, "messages"),)),)
    if not _is_list(messages):
        remedy = "give a list of messages, or a string"
        raise InputError("messages", f"are a {type(messages).__name__}", remedy)
    if not messages:
        raise InputError("messages", "are empty", "give at least one message")
    return tuple(_message(message, f"messages[{index}]") for index, message in enumerate(cast(Sequence[Any], messages)))


def _message(message: object, field: str) -> Message:
    given = _fields(message, field, ("role", "content"))
    if given["role"] not in _ROLES:
        raise InputError(f"{field}.role", f"{given['role']!r} is unknown", f"use one of {', '.join(_ROLES)}")
    return Message(cast(Role, given["role"]), _content(given["content"], f"{field}.content"))


def _content(content: object, field: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (_text(content, field),)
    if not _is_list(content):
        raise InputError(field, f"is a {type(content).__name__}", "give a string or a list of parts")
    if not content:
        raise InputError(field, "is empty", "give at least one part, or a string")
    return tuple(_part(part, f"{field}[{index}]") for index, part in enumerate(cast(Sequence[Any], content)))


def _part(part: object, field: str) -> Part:
    if not isinstance(part, Mapping):
        raise InputError(field, f"is a {type(part).__name__}", 'give a dict such as {"type": "text", "text": "..."}')
    kind = part.get("type")
    if kind in _VIDEO:
        remedy = "give single pictures as image_url parts and the sound as an input_audio part"
        raise InputError(f"{field}.type", "video input is not supported", remedy)
    if not isinstance(kind, str) or kind not in _PARTS:
        raise InputError(f"{field}.type", f"{kind!r} is unknown", f"use one of {', '.join(_PARTS)}")
    return _PARTS[kind](_fields(part, field, ("type", kind))[kind], f"{field}.{kind}")


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


def _audio(source: Any, field: str) -> AudioPart:
    return AudioPart(load_audio(source, field=field), field)


def _image(source: Any, field: str) -> ImagePart:
    if isinstance(source, Mapping):
        # OpenAI's clients fill `detail` in; a model here sees a picture in one way only.
        source = _fields({"detail": "auto", **source}, field, ("url", "detail"))
        if source["detail"] != "auto":
            raise InputError(f"{field}.detail", f"{source['detail']!r} is not supported", 'use "auto" or leave it out')
        source, field = source["url"], f"{field}.url"
    return ImagePart(load_image(source, field=field), field)


_PARTS: Mapping[str, Callable[[Any, str], Part]] = {"text": _text, "input_audio": _audio, "image_url": _image}


def _fields(value: object, field: str, names: tuple[str, ...]) -> Mapping[str, Any]:
    """`value` if it is a mapping with exactly the keys `names`."""
    wanted = " and ".join(repr(name) for name in names)
    if not isinstance(value, Mapping):
        raise InputError(field, f"is a {type(value).__name__}", f"give a dict with {wanted}")
    for name in names:
        if name not in value:
            raise InputError(f"{field}.{name}", "is missing", f"give {wanted}")
    for key in value:
        if key not in names:
            raise InputError(f"{field}.{key}", "is not known here", f"give {wanted} only")
    return value


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
