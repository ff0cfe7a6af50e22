"""OpenAI-style messages, media decoded.

    [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "cat.png"}},
        {"type": "input_audio", "input_audio": {"data": "<base64>", "format": "wav"}},
        {"type": "text", "text": "What do you see and hear?"},
    ]}]

Media may also be given as they are: a path, a URL, a data URI, bytes, an array, a tensor, `(array, rate)`, a PIL image.
A message may have a `name` beside its role where the model tells speakers apart.

In three steps: `check_messages` opens nothing, `remote_media` says what is to be downloaded, and `parse_messages` decodes. All of
them name a medium by its path, `messages[0].content[1].input_audio` or `messages[0].content[0].image_url`.
"""

from dataclasses import dataclass
from typing import cast

from omni.errors import InputError
from omni.frontend.base import AudioPart, ImagePart, Message, Part, TextPart
from omni.frontend.outline import Medium, Outline, check_size, outline
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

__all__ = ["RemoteMedia", "check_messages", "check_size", "has_media", "parse_messages", "remote_media"]

_DEFAULTS = MediaOptions()


@dataclass(frozen=True, slots=True)
class RemoteMedia:
    """A medium that stands elsewhere. field: its path in the messages. url: as it was given, http or https."""

    field: str
    url: str


def check_messages(messages: object, *, names: bool = False, media: MediaOptions = _DEFAULTS) -> None:
    """Raises InputError, with the path of the field, for all that can be told without opening a medium: the structure of a chat,
    and media of the wrong type or from where they may not come. Arguments as of `parse_messages`."""
    _checked(messages, names, media)


def has_media(messages: object) -> bool:
    """Whether a chat has a picture or a sound, however it is given. Never raises: malformed messages have none."""
    try:
        return bool(_media(outline(messages)))
    except InputError:
        return False


def remote_media(messages: object) -> tuple[RemoteMedia, ...]:
    """The http(s) URLs in a chat, each once, with the first medium that has it. Never raises: of malformed messages, none."""
    try:
        read = outline(messages)
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
    media: whence, and how much. downloaded: the content of each of `remote_media`; None downloads them here, one by one.
    Reads and decodes media, so it may take a while. Raises InputError with the path of the field that is wrong.
    """
    read = _checked(messages, names, media)
    return tuple(
        Message(each.role, tuple(_part(part, sample_rate, media, downloaded) for part in each.content), each.name)
        for each in read
    )


def _checked(messages: object, names: bool, media: MediaOptions) -> tuple[Outline, ...]:
    read = outline(messages)
    for index, message in enumerate(read):
        if message.name is not None and not names:
            problem = "is given, but this model does not tell speakers apart by name"
            raise InputError(f"messages[{index}].name", problem, "leave it out")
    remote = 0
    for medium in _media(read):
        check = check_audio if medium.kind == "input_audio" else check_image
        check(medium.source, medium.field, media)
        remote += is_remote(medium.source)
        if remote > media.max_downloads_per_request:
            problem = f"is the request's URL number {remote}"
            remedy = f"use at most {media.max_downloads_per_request}, or raise frontend.media.max_downloads_per_request"
            raise InputError(medium.field, problem, remedy)
    return read


def _media(read: tuple[Outline, ...]) -> list[Medium]:
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
