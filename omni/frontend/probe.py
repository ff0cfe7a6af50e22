"""Trial requests: at start a front end prepares the shortest chats, with each kind of media that its family takes. Faults of a
checkpoint that would fail every request are reported at start, with the file's name."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from omni.errors import CheckpointError, OmniError, quoted, shortened
from omni.frontend.base import AudioPart, ImagePart
from omni.frontend.template import ChatTemplate, Turns

PREPROCESSOR = "preprocessor_config.json"
_TEXT = "hello"
_RESTORE = "use the files that belong to these weights"
_SECONDS = 0.25
_SIDES = (50, 70)
"""Sides of a picture, in pixels: not divisible into patches."""

Ids = NDArray[np.int64]


@contextmanager
def blamed_on(field: str) -> Iterator[None]:
    """Reports any error raised within as a fault of `field`, a file or a field of it."""
    try:
        yield
    except OmniError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(field, f"fails a request ({shortened(str(error))})", _RESTORE) from error
    except Exception as error:  # of a library, about values of the file
        problem = f"fails every request ({type(error).__name__}: {shortened(str(error))})"
        raise CheckpointError(field, problem, _RESTORE) from error


def check_vocabulary(tokenizer: Any, size: int) -> None:
    """Raises CheckpointError for a tokenizer with ids beyond the model's vocabulary `size`, or without ids for a text."""
    with blamed_on("tokenizer"):
        token, most = max(tokenizer.get_vocab().items(), key=lambda item: item[1], default=("", -1))
        empty = not tokenizer(_TEXT, add_special_tokens=False)["input_ids"]
    if most >= size:
        problem = f"has id {most:,} for {quoted(token)}, and the model's vocabulary has {size:,}"
        raise CheckpointError("tokenizer", problem, _RESTORE)
    if empty:
        raise CheckpointError("tokenizer", f"has no ids for a text such as {_TEXT!r}", _RESTORE)


def check_template(
    template: ChatTemplate, encode: Callable[[str], Ids], placeholders: Mapping[str, int], answer: bool
) -> Ids:
    """Raises CheckpointError unless the template renders each medium as one placeholder, and a text as itself. Without media, a
    message's content is a text instead of a list of parts. placeholders: ids of config.json by kind, `"audio"` or `"image"`."""
    rendered = template.probe(_turn() if placeholders else [{"role": "user", "content": _TEXT}], answer=answer)
    if _TEXT not in rendered:
        raise template.refuse(f"leaves out the text of a message: {quoted(rendered)}")
    ids = encode(rendered)
    for kind, token in placeholders.items():
        for count in (0, 1, 2):
            given = encode(template.probe(_turn(*[kind] * count), answer=answer)) if count else ids
            found = int((given == token).sum())
            if found != count:
                problem = f"gives {found} placeholders for {count} parts of kind {kind} (config.json: {kind}_token is {token})"
                raise template.refuse(problem)
    return ids


def check_word(tokenizer: Any, role: str, word: Callable[[], object], token: int | None = None) -> None:
    """Raises CheckpointError unless the tokenizer has a word for `role`, such as `"audio_token"`: a token, `token` if one is given.
    word: reads it from the tokenizer, which lacks the attribute if the file does not name it."""
    field = f"tokenizer_config.json: {role}"
    with blamed_on(field):
        found = word()
    if not isinstance(found, str) or not found:
        raise CheckpointError(field, f"is {quoted(found)}, not a token", _RESTORE)
    own = tokenizer.convert_tokens_to_ids(found)
    if token is not None and own != token:
        raise CheckpointError(field, f"{quoted(found)} is token {own}, and config.json has {token} for it", _RESTORE)


def sound(rate: int) -> AudioPart:
    """A quiet tone, for a front end that takes samples at `rate`."""
    count = int(rate * _SECONDS)
    return AudioPart((0.1 * np.sin(np.arange(count) * 0.1)).astype(np.float32), "probe")


def picture() -> ImagePart:
    shade = np.arange(3 * _SIDES[0] * _SIDES[1], dtype=np.uint32) * 7 % 256
    return ImagePart(Image.fromarray(shade.astype(np.uint8).reshape(*_SIDES, 3)), "probe")


def check_features(field: str, features: Any, width: int, axis: int, name: str) -> None:
    """Raises CheckpointError for features of another width than the tower's, or that are not finite. name: of the width."""
    if features.shape[axis] != width:
        problem = f"gives features of {features.shape[axis]:,} values, and {name} in config.json asks for {width:,}"
        raise CheckpointError(field, problem, _RESTORE)
    if not features.isfinite().all():
        raise CheckpointError(field, "gives features that are not finite", _RESTORE)


def _turn(*media: str) -> Turns:
    parts: Sequence[Mapping[str, str]] = [{"type": kind, kind: ""} for kind in media]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": _TEXT}]}]
