"""A vocabulary as llguidance wants it."""

from collections.abc import Sequence
from functools import cached_property

from llguidance import LLTokenizer, TokenizerWrapper

from omni.frontend.vocabulary import Vocabulary


class _Tokens:
    """The vocabulary and one id more, which stands for the end of a text whatever ids end it at a stage."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = [*vocabulary.tokens, b"<end>"]
        self.eos_token_id = len(vocabulary.tokens)
        self.special_token_ids = [self.eos_token_id]
        self._vocabulary = vocabulary

    def __call__(self, text: str | bytes) -> Sequence[int]:
        """The ids that the tokenizer would take for a text within another.

        Where a form leaves no choice, masks allow these and not the same bytes in other tokens: they must write exactly this text.
        """
        if isinstance(text, bytes):
            raise TypeError("texts, not bytes")
        ids = self._vocabulary.encode(text)
        written = b"".join(map(self._vocabulary.written, ids))
        # Many tokenizers put a space before what they take for the beginning of a text.
        return ids if written == text.encode() else self._longest(text.encode())

    def _longest(self, text: bytes) -> list[int]:
        """From left to right, always the longest token that fits, as far as there is one."""
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


def constraint_tokens(vocabulary: Vocabulary) -> LLTokenizer:
    """Holds the interpreter lock for about half a second where there are 150,000 ids: make it before anything is served."""
    return LLTokenizer(TokenizerWrapper(_Tokens(vocabulary)))
