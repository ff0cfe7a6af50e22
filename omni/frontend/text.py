"""Token ids to text while they come."""

from collections.abc import Sequence
from typing import Any, Protocol

_UNFINISHED = "\ufffd"
_CONTEXT = 16
_MAX_HELD = 64


class Tokenizer(Protocol):
    """What is needed of a tokenizer; every one of transformers' will do."""

    def decode(self, token_ids: Any, *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> Any: ...


class IncrementalDecoder:
    """Gives text as soon as further ids cannot change it. One per request.

    What `push` and `finish` return, put together, is `tokenizer.decode(all_ids, skip_special_tokens=True,
    clean_up_tokenization_spaces=False)`: cleaning up would take back spaces that were given already.

    The end of the ids may be half a character, which decodes to U+FFFD; so that sign is kept back while it is last.
    Only a window of recent ids is decoded again: it reaches back far enough that what a tokenizer does to the start of
    a text (some drop a space) happens to ids whose text was given already.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._given = ""
        """The part of the window's text that was given out."""

    def push(self, ids: Sequence[int]) -> str:
        self._window += ids
        text = self._decode(self._window)
        # A text of nothing but broken bytes is given out late, but it is given out.
        held = min(len(text) - len(text.rstrip(_UNFINISHED)), _MAX_HELD)
        settled = text[: len(text) - held]
        if not settled.startswith(self._given):
            # Byte by byte, a tokenizer may take a whole run of characters back until the last of them is complete.
            return ""
        new = settled[len(self._given) :]
        self._given = settled
        self._shorten(text, held)
        return new

    def finish(self) -> str:
        text = self._decode(self._window)
        new = text[len(self._given) :] if text.startswith(self._given) else ""
        self._window, self._given = [], ""
        return new

    def _shorten(self, text: str, held: int) -> None:
        keep = _CONTEXT + held
        if len(self._window) <= 2 * keep:
            return
        recent = self._window[-keep:]
        recent_text = self._decode(recent)
        # A cut inside a character would show as a different text; the next call tries another place.
        if len(recent_text) > held and text.endswith(recent_text):
            self._window, self._given = recent, recent_text[: len(recent_text) - held]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
