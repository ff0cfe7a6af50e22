"""Texts and their token ids, by a tokenizer of transformers."""

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omni.errors import InputError
from omni.frontend.base import Chat, Frontend, Part, TextPart

Ids = NDArray[np.int64]


class TokenizedFrontend(Frontend):
    """What front ends share whose threads use one tokenizer of transformers. It gives no text: `ChatFrontend` does."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # transformers' fast tokenizers are not safe to share between threads while their padding state changes.
        self._lock = threading.Lock()

    def text_ids(self, text: str, *, bare: bool = False) -> Ids:
        """The ids of a text, int64 `[T]`, with what the tokenizer puts around every text, unless it is to be `bare`."""
        with self._lock:
            return np.asarray(self._tokenizer(text, add_special_tokens=not bare)["input_ids"], np.int64)


def message_texts(chat: Chat) -> list[str]:
    """What each message says, its parts put together. Raises InputError for sound and pictures."""
    return [_text(message.content) for message in chat.messages]


def _text(content: tuple[Part, ...]) -> str:
    for part in content:
        if not isinstance(part, TextPart):
            raise InputError(part.field, "is sound or a picture", "give this model text only")
    return "".join(part.text for part in content if isinstance(part, TextPart))
