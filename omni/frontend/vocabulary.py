"""The texts of a text model's ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tokenizers import Tokenizer


@dataclass(frozen=True)
class Vocabulary:
    """Any thread may use it. tokens: by id, its UTF-8 bytes in a text, perhaps a part of a character; b"" for an id without text.
    tokenizer: of the tokenizers library; None if a text is encoded as the longest tokens that fit."""

    tokens: tuple[bytes, ...]
    tokenizer: Tokenizer | None = None

    def encode(self, text: str) -> Sequence[int]:
        """The ids of a text, without special tokens."""
        if self.tokenizer is None:
            return self.longest(text.encode())
        # Only the library's batch methods release the interpreter lock.
        ids: list[int] = self.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def longest(self, text: bytes) -> Sequence[int]:
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

    def written(self, token: int) -> bytes:
        """The bytes of an id. The last ids of a model may be unused: they have none."""
        return self.tokens[token] if token < len(self.tokens) else b""

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {written: token for token, written in enumerate(self.tokens) if written}

    @cached_property
    def _width(self) -> int:
        return max(map(len, self.tokens))
