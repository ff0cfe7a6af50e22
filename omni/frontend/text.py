"""Token ids to text, incrementally."""

from collections.abc import Sequence
from typing import Any

_UNFINISHED = "\ufffd"
_CONTEXT = 16
_MAX_HELD = 64


class IncrementalDecoder:
    """Returns text as soon as further ids cannot change it. One per request. The concatenated results of `push` and `finish` are
    `tokenizer.decode(all_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)`: cleaning up would remove spaces that
    were returned already.

    The last ids may be half a character, which decodes to U+FFFD; so that character is kept while it is last. Only the recent ids
    are decoded again. They are numerous enough that a tokenizer's changes to the start of a text affect only returned text.
    """

    def __init__(self, tokenizer: Any) -> None:
        """tokenizer: a tokenizer of transformers."""
        self._tokenizer = tokenizer
        self._recent: list[int] = []
        self._given = ""
        """The part of the recent ids' text that was returned."""

    def push(self, ids: Sequence[int]) -> str:
        self._recent += ids
        text = self._decode(self._recent)
        # A text of broken bytes alone is returned late, but it is returned.
        held = min(len(text) - len(text.rstrip(_UNFINISHED)), _MAX_HELD)
        settled = text[: len(text) - held]
        if not settled.startswith(self._given):
            # Byte by byte, a tokenizer may revise a whole run of characters until the last of them is complete.
            return ""
        new = settled[len(self._given) :]
        self._given = settled
        self._shorten(text, held)
        return new

    def finish(self) -> str:
        text = self._decode(self._recent)
        new = text[len(self._given) :] if text.startswith(self._given) else ""
        self._recent, self._given = [], ""
        return new

    def _shorten(self, text: str, held: int) -> None:
        keep = _CONTEXT + held
        if len(self._recent) <= 2 * keep:
            return
        recent = self._recent[-keep:]
        recent_text = self._decode(recent)
        # A cut inside a character would change the text; the next call tries another place.
        if len(recent_text) > held and text.endswith(recent_text):
            self._recent, self._given = recent, recent_text[: len(recent_text) - held]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
