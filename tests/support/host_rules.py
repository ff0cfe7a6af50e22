"""Rules of the host by token ids alone: a host processor with a memory, and ends that take two tokens."""

import numpy as np

from omni.sampling import LogitsEdit, StopVerdict


class NothingTwice:
    """Forbids the last `memory` tokens, and ids beyond `vocab`'s first half in every third token; ends a request after `most`."""

    def __init__(self, vocab: int, memory: int = 3, most: int = 1000) -> None:
        self._vocab, self._memory, self._most = vocab, memory, most
        self._said: list[int] = []

    def edit(self) -> LogitsEdit:
        ids = np.array(self._said[-self._memory :], np.int64)
        bias = np.full(len(ids), -np.inf, np.float32)
        if len(self._said) % 3:
            return LogitsEdit(ids=ids, bias=bias)
        bits = np.zeros(-(-self._vocab // 64) * 64, np.uint8)
        bits[: self._vocab // 2] = 1
        return LogitsEdit(np.packbits(bits, bitorder="little").view(np.int64), ids, bias)

    def push(self, token: int) -> bool:
        self._said.append(token)
        return len(self._said) >= self._most


class TwoInARow:
    """A text ends with two tokens in a row out of `ids`."""

    def __init__(self, ids: frozenset[int]) -> None:
        self._ids = ids
        self._last = -1

    def push(self, token: int) -> StopVerdict:
        last, self._last = self._last, token
        if token not in self._ids:
            return StopVerdict(0, False)
        return StopVerdict(2, True) if last in self._ids else StopVerdict(1, False)
