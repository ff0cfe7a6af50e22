"""What the ids of a text model write."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Ids and the bytes of text that each stands for.

    tokens: by id, the UTF-8 bytes that it adds to a text, which may be a part of a character. b"" for an id that writes nothing.
    encode: a text's ids, without those that a tokenizer puts around it. May be called from any thread.
    """

    tokens: tuple[bytes, ...]
    encode: Callable[[str], Sequence[int]]

    def written(self, token: int) -> bytes:
        """The bytes of an id. A model's last ids may be nobody's: they write nothing."""
        return self.tokens[token] if token < len(self.tokens) else b""
