"""A compiled grammar, and its state for one request."""

from collections.abc import Collection

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from omni.errors import InputError, shortened
from omni.sampling import LogitsEdit


class Grammar:
    """A compiled grammar. Immutable, shared by all its requests. matcher: stays at the beginning of a text. vocab_size: number of
    ids; the next id stands for the end of the text."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self.vocab_size = vocab_size

    def matcher(self) -> LLMatcher:
        """A copy at the beginning of a text, for one request."""
        return self._matcher.deep_copy()


class GrammarMatcher:
    """A `HostLogitsProcessor` that allows the tokens of a grammar, and end ids where the text may end. ends: ids that end
    generation, even those with a text. field: for errors."""

    def __init__(self, grammar: Grammar, ends: Collection[int], field: str) -> None:
        self._matcher = grammar.matcher()
        self._end = grammar.vocab_size
        self._ends = frozenset(ends)
        self._field = field
        words = max((self._end, *self._ends)) // 64 + 1
        self._ends_W = _mask(self._ends, words)
        self._texts_W = ~_mask({*self._ends, self._end}, words)
        # The last id may be the last bit of its word: the mask has no bit for the end of the text.
        self._words = max((self._end - 1, *self._ends)) // 64 + 1
        self._allowed_W, self._complete = self._next_mask()

    def edit(self) -> LogitsEdit:
        """Raises InputError if no token can follow."""
        if not self._allowed_W.any():
            raise self._dead_end()
        return LogitsEdit(allowed=self._allowed_W)

    def push(self, token: int) -> bool:
        """Raises InputError if no token can follow, or if the parser's state grew too complex."""
        if token in self._ends:
            return True
        if not self._matcher.consume_token(token):
            raise InputError(self._field, f"cannot continue after id {token}: {self._error()}", "simplify it")
        self._allowed_W, self._complete = self._next_mask()
        return self._complete

    def _next_mask(self) -> tuple[NDArray[np.int64], bool]:
        """The mask of the next token, and whether only the end can follow."""
        bits = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            if self._error().startswith("NoExtension"):
                raise self._dead_end()
            raise InputError(self._field, f"cannot continue: {self._error()}", "simplify it")
        padded = bytearray(8 * len(self._ends_W))
        padded[: len(bits)] = bits
        allowed_W = np.frombuffer(padded, np.int64)
        word, bit = divmod(self._end, 64)
        may_end = bool(allowed_W[word] >> bit & 1)
        allowed_W &= self._texts_W
        complete = may_end and not allowed_W.any()
        if may_end:
            allowed_W |= self._ends_W
        return allowed_W[: self._words], complete

    def _dead_end(self) -> InputError:
        return InputError(self._field, "no token of the vocabulary can continue the text", "change it")

    def _error(self) -> str:
        return shortened(" ".join(self._matcher.get_error().replace("<non-verbose/>", "").split()))


def _mask(ids: Collection[int], words: int) -> NDArray[np.int64]:
    """Bit i of word w is id 64 * w + i."""
    bits = np.zeros(64 * words, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.int64)
