"""OpenAI-style messages, media decoded.

    [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "cat.png"}},
        {"type": "input_audio", "input_audio": {"data": "<base64>", "format": "wav"}},
        {"type": "text", "text": "What do you see and hear?"},
    ]}]

Sound at a URL may also be `{"type": "audio_url", "audio_url": {"url": "..."}}`. Media may also be given directly: a path, a URL, a
data URI, bytes, an array, a tensor, `(array, rate)`, a PIL image.
A message may have a `name` beside its role where the model distinguishes speakers.

In three steps: `check_messages` opens nothing, `remote_media` lists downloads, and `parse_messages` decodes. All of them name a
medium by its path, `messages[0].content[1].input_audio` or `messages[0].content[0].image_url`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard, cast, get_args

from omni.errors import InputError, check_unicode, quoted, shortened
from omni.frontend.base import AudioPart, ImagePart, Message, Part, Role, TextPart
from omni.media import (
    AudioSource,
    Downloaded,
    ImageSource,
    MediaOptions,
    check_audio,
    check_image,
    load_audio,
    load_image,
)
from omni.media.url import is_remote

MAX_PARTS = 10_000
"""Parts of all messages of a chat together. Each takes time in the user's thread, before the request waits."""

_ROLES: tuple[str, ...] = get_args(Role)
_VIDEO = ("video", "video_url", "input_video")

MediumKind = Literal["input_audio", "image_url"]
_PARTS = ("text", *get_args(MediumKind), "audio_url")
_DEFAULTS = MediaOptions()


@dataclass(frozen=True, slots=True)
class Medium:
    """source: as the user gave it. field: its path, for errors."""

    kind: MediumKind
    source: object
    field: str


@dataclass(frozen=True, slots=True)
class UndecodedMessage:
    """A message with its media as they were given."""

    role: Role
    content: tuple[TextPart | Medium, ...]
    name: str | None


@dataclass(frozen=True, slots=True)
class RemoteMedia:
    """A medium to download. field: its path in the messages. url: as it was given, http or https."""

    field: str
    url: str


def check_size(messages: object) -> None:
    """Raises InputError for a chat of more than `MAX_PARTS` parts; a message counts as at least one. Checks nothing else."""
    parts = 0
    for message in messages if _is_list(messages) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        parts += max(1, len(content)) if _is_list(content) else 1
        if parts > MAX_PARTS:
            raise InputError("messages", f"have more than {MAX_PARTS} parts", "join texts, or send less in one request")


def check_messages(messages: object, *, names: bool = False, media: MediaOptions = _DEFAULTS) -> None:
    """Raises InputError, with the path of the field, for wrong structure and for media of a wrong type or a forbidden source.
    Opens nothing. Arguments as of `parse_messages`."""
    _checked(messages, names, media)


def has_media(messages: object) -> bool:
    """Whether a chat has a picture or a sound. Never raises: malformed messages have none."""
    try:
        return bool(_media(_structure(messages)))
    except InputError:
        return False


def remote_media(messages: object) -> tuple[RemoteMedia, ...]:
    """The http(s) URLs in a chat, each once, with its first medium. Never raises: malformed messages have none."""
    try:
        read = _structure(messages)
    except InputError:
        return ()
    found: dict[str, RemoteMedia] = {}
    for medium in _media(read):
        if is_remote(medium.source):
            url = cast(str, medium.source)
            found.setdefault(url, RemoteMedia(medium.field, url))
    return tuple(found.values())


def parse_messages(
    messages: object,
    *,
    sample_rate: int = 16000,
    names: bool = False,
    media: MediaOptions = _DEFAULTS,
    downloaded: Downloaded | None = None,
) -> tuple[Message, ...]:
    """A chat from a list of messages, or from a string: one message of the user.

    sample_rate: Hz, of `AudioPart`s. names: whether messages may have one (`Frontend.sample_rate`, `Frontend.takes_names`).
    media: allowed sources and sizes. downloaded: contents of `remote_media`; None downloads them here, one by one.
    Reads and decodes media, which may take long. Raises InputError with the path of the field.
    """
    read = _checked(messages, names, media)
    return tuple(
        Message(each.role, tuple(_part(part, sample_rate, media, downloaded) for part in each.content), each.name)
        for each in read
    )


def _checked(messages: object, names: bool, media: MediaOptions) -> tuple[UndecodedMessage, ...]:
    read = _structure(messages)
    for index, message in enumerate(read):
        if message.name is not None and not names:
            problem = "is given, but this model does not distinguish speakers by name"
            raise InputError(f"messages[{index}].name", problem, "leave it out")
    remote = 0
    for medium in _media(read):
        check = check_audio if medium.kind == "input_audio" else check_image
        check(medium.source, medium.field, media)
        remote += is_remote(medium.source)
        if remote > media.max_downloads_per_request:
            problem = f"is the request's URL number {remote}"
            remedy = f"use at most {media.max_downloads_per_request}, and send other files themselves as data URIs"
            raise InputError(medium.field, problem, remedy, "raise frontend.media.max_downloads_per_request")
    return read


def _media(read: tuple[UndecodedMessage, ...]) -> list[Medium]:
    return [part for message in read for part in message.content if isinstance(part, Medium)]


def _part(part: TextPart | Medium, sample_rate: int, media: MediaOptions, downloaded: Downloaded | None) -> Part:
    if isinstance(part, TextPart):
        return part
    if part.kind == "input_audio":
        sound = cast(AudioSource, part.source)
        samples = load_audio(sound, field=part.field, sample_rate=sample_rate, options=media, downloaded=downloaded)
        return AudioPart(samples, part.field)
    picture = cast(ImageSource, part.source)
    return ImagePart(load_image(picture, field=part.field, options=media, downloaded=downloaded), part.field)


def _structure(messages: object) -> tuple[UndecodedMessage, ...]:
    """The messages of a chat; a string is one of the user. Raises InputError with the path of the field."""
    if isinstance(messages, str):
        return (UndecodedMessage("user", (_text(messages, "messages"),), None),)
    check_size(messages)
    given = _list(messages, "messages", "are", "give a list of messages, or a string")
    if not given:
        raise InputError("messages", "are empty", "give at least one message")
    return tuple(_message(message, f"messages[{index}]") for index, message in enumerate(given))


def _message(message: object, field: str) -> UndecodedMessage:
    given = _fields(message, field, ("role", "content"), optional="name")
    role = given["role"]
    if not isinstance(role, str) or role not in _ROLES:
        raise InputError(f"{field}.role", f"{quoted(role)} is unknown", f"use one of {', '.join(_ROLES)}")
    name = given.get("name")
    if name is not None:
        name = _text(name, f"{field}.name").text
        if not name:
            raise InputError(f"{field}.name", "is empty", "give a name, or leave it out")
    return UndecodedMessage(cast(Role, role), _content(given["content"], f"{field}.content"), name)


def _content(content: object, field: str) -> tuple[TextPart | Medium, ...]:
    if isinstance(content, str):
        return (_text(content, field),)
    parts = _list(content, field, "is", "give a string or a list of parts")
    if not parts:
        raise InputError(field, "is empty", "give at least one part, or a string")
    return tuple(_parsed(part, f"{field}[{index}]") for index, part in enumerate(parts))


def _parsed(part: object, field: str) -> TextPart | Medium:
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
        # OpenAI's clients fill in `detail`; the models here have one resolution only.
        given = _fields({"detail": "auto", **source}, field, ("url", "detail"))
        source, detail = given["url"], given["detail"]
        if not isinstance(detail, str) or detail != "auto":
            raise InputError(f"{field}.detail", f"{quoted(detail)} is not supported", 'use "auto" or leave it out')
    if kind == "audio_url":
        if isinstance(source, Mapping):
            source = _fields(source, field, ("url",))["url"]
        if not isinstance(source, str):
            raise InputError(field, f"is a {_kind(source)}", "give the URL as a string")
        kind = "input_audio"
    return Medium(cast(MediumKind, kind), source, field)


def _text(text: object, field: str) -> TextPart:
    if not isinstance(text, str):
        raise InputError(field, f"is a {_kind(text)}", "give a string")
    check_unicode(text, field)
    return TextPart(text)


def _fields(value: object, field: str, names: tuple[str, ...], optional: str | None = None) -> Mapping[str, Any]:
    """`value` if it is a mapping with the keys `names`, and no others but `optional`."""
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
