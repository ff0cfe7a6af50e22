"""The texts of a text model's ids."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """tokens: by id, its UTF-8 bytes in a text, perhaps a part of a character; b"" for an id without text. encode: a text's ids,
    without special tokens. May be called from any thread."""

    tokens: tuple[bytes, ...]
    encode: Callable[[str], Sequence[int]]

    def written(self, token: int) -> bytes:
        """The bytes of an id. The last ids of a model may be unused: they have none."""
        return self.tokens[token] if token < len(self.tokens) else b""
