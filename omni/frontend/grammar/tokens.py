"""A vocabulary for llguidance."""

from collections.abc import Sequence
from functools import cached_property

from omni.frontend.vocabulary import Vocabulary


class Tokens:
    """The vocabulary and one more id for the end of a text, whatever the end ids of the stage."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = [*vocabulary.tokens, b"<end>"]
        self.eos_token_id = len(vocabulary.tokens)
        self.special_token_ids = [self.eos_token_id]
        self._vocabulary = vocabulary

    def __call__(self, text: str | bytes) -> Sequence[int]:
        """The tokenizer's ids of a text inside another. Where a grammar allows one text only, masks allow these ids and no others
        for its bytes: they must decode to exactly it."""
        if isinstance(text, bytes):
            raise TypeError("texts, not bytes")
        ids = self._vocabulary.encode(text)
        written = b"".join(map(self._vocabulary.written, ids))
        # Many tokenizers add a space at the beginning of a text.
        return ids if written == text.encode() else self._longest(text.encode())

    def _longest(self, text: bytes) -> list[int]:
        """Greedily the longest token that fits, until none does."""
        ids: list[int] = []
        place = 0
        while place < len(text):
            fits = (self._ids.get(text[place:end]) for end in range(min(len(text), place + self._width), place, -1))
            token = next((token for token in fits if token is not None), None)
            if token is None:
                break
            ids.append(token)
            place += len(self.tokens[token])
        return ids

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {written: token for token, written in enumerate(self._vocabulary.tokens) if written}

    @cached_property
    def _width(self) -> int:
        return max(map(len, self._vocabulary.tokens))
