"""Texts and their token ids, by a tokenizer of transformers."""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omni.errors import InputError
from omni.frontend.base import Chat, Frontend, Part, TextPart
from omni.frontend.chat_template import chat_template
from omni.frontend.probe import check_template
from omni.frontend.template import Turns

Ids = NDArray[np.int64]


class TokenizedFrontend(Frontend):
    """What front ends share whose threads use one tokenizer of transformers. It gives no text: `ChatFrontend` does."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # transformers' fast tokenizers are not safe to share between threads while their padding state changes.
        self._lock = threading.Lock()
        self._template = chat_template(tokenizer)

    def text_ids(self, text: str, *, bare: bool = False) -> Ids:
        """The ids of a text, int64 `[T]`, with what the tokenizer puts around every text, unless it is to be `bare`."""
        with self._lock:
            return np.asarray(self._tokenizer(text, add_special_tokens=not bare)["input_ids"], np.int64)

    def check_template(self, placeholders: Mapping[str, int], *, answer: bool, bare: bool = False) -> Ids:
        """Raises CheckpointError for a chat template that lays out short chats wrongly, as `omni.frontend.probe` has it.

        placeholders: ids by kind of medium. Returns the ids of a chat of text.
        """
        assert self._template is not None, (
            "load_tokenizer refuses a folder without one, unless it is told that there are no chats"
        )
        return check_template(self._template, lambda text: self.text_ids(text, bare=bare), placeholders, answer)

    def render(self, turns: Turns, *, answer: bool) -> str:
        """A chat as the checkpoint's template lays it out, up to where an `answer` begins if one is wanted. Threads do not wait for
        each other. Raises InputError for a chat that the template refuses."""
        assert self._template is not None, (
            "load_tokenizer refuses a folder without one, unless it is told that there are no chats"
        )
        return self._template.render(turns, answer=answer)


def message_texts(chat: Chat) -> list[str]:
    """What each message says, its parts put together. Raises InputError for sound and pictures."""
    return [_text(message.content, f"messages[{index}].content") for index, message in enumerate(chat.messages)]


def _text(content: tuple[Part, ...], field: str) -> str:
    for number, part in enumerate(content):
        if not isinstance(part, TextPart):
            raise InputError(f"{field}[{number}]", "is sound or a picture", "give this model text only")
    return "".join(part.text for part in content if isinstance(part, TextPart))
