"""Control tokens in what users write: text, not turns."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken

from omni.errors import InputError
from omni.frontend.template import Turns

_BLOCK = 0x100
_PRIVATE = range(0xF0000, 0x10FF00, _BLOCK)
"""Blocks of signs for private use, in planes 15 and 16, of which hardly any text holds one."""

_NEVER = r"(?!)"


class ControlTokens:
    """The ids that only a chat template may write.

    A text that holds the written form of one is laid out with stand-ins for the signs that could begin it. So the forms that are
    in the laid out chat are the template's own.

    words: by id. normal: what a tokenizer does to a text before it looks for those of them that are `normalized`.
    """

    def __init__(self, words: Mapping[int, AddedToken], normal: Callable[[str], str] | None) -> None:
        # The longest first, as in the tokenizers library.
        ordered = sorted(words.items(), key=lambda each: len(each[1].content), reverse=True)
        self._ids = [i for i, _ in ordered]
        forms = [re.escape(word.content) for _, word in ordered]
        self._form = re.compile("|".join(forms) or _NEVER)
        self._start = re.compile(f"(?=(?:{self._form.pattern}))(.)", re.DOTALL)
        self._split = re.compile("|".join(_pattern(word) for _, word in ordered) or _NEVER)
        self._begins = sorted({word.content[0] for _, word in ordered})
        self._normal = normal if any(word.normalized for word in words.values()) else None

    def are_in(self, turns: Turns) -> bool:
        """Whether the texts may write one: each by itself, or several put together."""
        texts = [text for turn in turns for text in _texts(turn["content"])]
        joined = ["".join(texts)]
        if len(texts) > len(turns):
            joined.append("".join(map(str.strip, texts)))
        if self._normal is not None:
            joined += [self._normal(text) for text in joined]
        return any(self._form.search(text) for text in joined)

    def laid_out(self, turns: Turns, chat: str, render: Callable[[Turns], str]) -> Iterator[int | str]:
        """The chat in pieces: ids of the template's control tokens, and what is between them. Raises InputError for texts that hold
        signs of every block for private use.

        chat: as `render` gives it of `turns`.
        """
        stand_ins = self._stand_ins(chat, turns)
        back = {stand_in: sign for sign, stand_in in stand_ins.items()}
        marked = render(_replaced(turns, lambda text: text.translate(stand_ins)))
        if marked.translate(back) != chat:
            # The template looks for such signs in texts: for what ends a thought, as it may.
            marked = render(_replaced(turns, lambda text: self._start.sub(lambda s: s[1].translate(stand_ins), text)))
        return self._pieces(marked, back)

    @staticmethod
    def edited(turns: Turns, chat: str) -> bool:
        """Whether the template does not take the texts as they stand: what it leaves of one may be a control token."""
        return not all(text.strip() in chat for turn in turns for text in _texts(turn["content"]))

    def _pieces(self, text: str, back: Mapping[int, int]) -> Iterator[int | str]:
        place = 0
        for found in self._split.finditer(text):
            yield text[place : found.start()].translate(back)
            assert found.lastindex is not None
            yield self._ids[found.lastindex - 1]
            place = found.end()
        yield text[place:].translate(back)

    def _stand_ins(self, chat: str, turns: Turns) -> dict[int, int]:
        """By the sign that it stands for."""
        texts = (chat, *(text for turn in turns for text in _texts(turn["content"])))
        used = {ord(sign) // _BLOCK for text in texts for sign in set(text)}
        first = next((first for first in _PRIVATE if first // _BLOCK not in used), None)
        if first is None:
            problem = "hold a control token, and signs of every block for private use"
            raise InputError("messages", problem, "remove either")
        return {ord(sign): first + place for place, sign in enumerate(self._begins)}


def _pattern(word: AddedToken) -> str:
    # White space that a token takes with it is gone, as in the tokenizers library.
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
