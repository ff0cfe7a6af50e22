"""Control tokens in users' texts are text: they open no turns."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken

from omni.errors import InputError
from omni.frontend.template import Turns

_BLOCK = 0x100
_PRIVATE = range(0xF0000, 0x10FF00, _BLOCK)
"""Blocks of the private use planes 15 and 16, which are rare in texts."""

_NEVER = r"(?!)"


class ControlTokens:
    """The tokens that only a chat template may write. A text with the written form of one is rendered with stand-ins for the
    characters that could begin it: the forms in the rendered chat are then the template's own.

    words: by id. normalize: of the tokenizer, applied to texts before it searches them for `normalized` tokens.
    """

    def __init__(self, words: Mapping[int, AddedToken], normalize: Callable[[str], str] | None) -> None:
        # The longest first, as in the tokenizers library.
        ordered = sorted(words.items(), key=lambda each: len(each[1].content), reverse=True)
        self._ids = [i for i, _ in ordered]
        forms = [re.escape(word.content) for _, word in ordered]
        self._form = re.compile("|".join(forms) or _NEVER)
        self._start = re.compile(f"(?=(?:{self._form.pattern}))(.)", re.DOTALL)
        self._split = re.compile("|".join(_pattern(word) for _, word in ordered) or _NEVER)
        self._begins = sorted({word.content[0] for _, word in ordered})
        self._normalize = normalize if any(word.normalized for word in words.values()) else None

    def are_in(self, turns: Turns) -> bool:
        """Whether the texts hold one, singly or joined."""
        texts = [text for turn in turns for text in _texts(turn["content"])]
        joined = ["".join(texts)]
        if len(texts) > len(turns):
            joined.append("".join(map(str.strip, texts)))
        if self._normalize is not None:
            joined += [self._normalize(text) for text in joined]
        return any(self._form.search(text) for text in joined)

    def pieces(self, turns: Turns, chat: str, render: Callable[[Turns], str]) -> Iterator[int | str]:
        """The chat (`turns`, rendered) in pieces: ids of the template's control tokens, and the texts between them. Raises
        InputError for texts with characters of every private use block."""
        stand_ins = self._stand_ins(chat, turns)
        back = {stand_in: sign for sign, stand_in in stand_ins.items()}
        marked = render(_replaced(turns, lambda text: text.translate(stand_ins)))
        if marked.translate(back) != chat:
            # The template searches texts for such characters, for the end of a thought.
            marked = render(_replaced(turns, lambda text: self._start.sub(lambda s: s[1].translate(stand_ins), text)))
        return self._split_marked(marked, back)

    @staticmethod
    def edited(turns: Turns, chat: str) -> bool:
        """Whether the template changes texts: the rest of one may be a control token."""
        return not all(text.strip() in chat for turn in turns for text in _texts(turn["content"]))

    def _split_marked(self, text: str, back: Mapping[int, int]) -> Iterator[int | str]:
        place = 0
        for found in self._split.finditer(text):
            yield text[place : found.start()].translate(back)
            assert found.lastindex is not None
            yield self._ids[found.lastindex - 1]
            place = found.end()
        yield text[place:].translate(back)

    def _stand_ins(self, chat: str, turns: Turns) -> dict[int, int]:
        """Returns the character that replaces each first character of a control token, as code points."""
        texts = (chat, *(text for turn in turns for text in _texts(turn["content"])))
        used = {ord(sign) // _BLOCK for text in texts for sign in set(text)}
        first = next((first for first in _PRIVATE if first // _BLOCK not in used), None)
        if first is None:
            problem = "hold a control token, and characters of every private use block"
            raise InputError("messages", problem, "remove either")
        return {ord(sign): first + place for place, sign in enumerate(self._begins)}


def _pattern(word: AddedToken) -> str:
    # White space that a token absorbs is dropped, as in the tokenizers library.
    before, after = (r"\s*" if takes else "" for takes in (word.lstrip, word.rstrip))
    form = rf"\b{re.escape(word.content)}\b" if word.single_word else re.escape(word.content)
    return f"{before}({form}){after}"


def _texts(content: str | Sequence[Mapping[str, Any]]) -> list[str]:
    return [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]


def _replaced(turns: Turns, change: Callable[[str], str]) -> Turns:
    return [{**turn, "content": _changed(turn["content"], change)} for turn in turns]


def _changed(content: str | Sequence[Mapping[str, Any]], change: Callable[[str], str]) -> object:
    if isinstance(content, str):
        return change(content)
    return [{**part, "text": change(part["text"])} if "text" in part else part for part in content]
