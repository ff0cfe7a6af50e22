"""Keys of block content: blocks with equal content keys have equal keys and values, and equal hidden states."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from omni_ar.inputs import Prompt

_BYTES = 16


class PrefixKeys:
    """The keys of one request's full blocks, in order, computed on demand. A key covers the cache salt, all content before the
    block, and the block's id columns, rotary positions, and placeholders (content key, and positions within the placeholder). A
    placeholder without a content key ends the chain before it."""

    def __init__(self, prompt: Prompt, salt: str, block_size: int, *, outputs: bool) -> None:
        """outputs: whether generated ids determine their positions' content (false for a model with conditioned steps)."""
        self._prompt = prompt
        self._size = block_size
        self._outputs = outputs and len(prompt.columns) == 1
        self._last = hashlib.blake2b(salt.encode(), digest_size=_BYTES).digest()
        self._keys: list[bytes] = []
        self._tokens = np.ascontiguousarray(np.concatenate([prompt.columns, prompt.positions]).T)
        ends = [int(each.positions[0]) for each in prompt.placeholders if each.key is None and each.positions.size]
        self._end = min(ends, default=prompt.length)
        """Number of prompt tokens before the first placeholder without a content key."""

    def first(self, count: int, ids: Sequence[int]) -> list[bytes]:
        """Keys of the first `count` blocks; fewer if the chain ends. ids: the request's generated ids so far."""
        length = self._prompt.length
        known = length + len(ids) if self._outputs and self._end == length else self._end
        while len(self._keys) < min(count, known // self._size):
            self._keys.append(self._next(ids))
        return self._keys[:count]

    def _next(self, ids: Sequence[int]) -> bytes:
        start = len(self._keys) * self._size
        end, length = start + self._size, self._prompt.length
        key = hashlib.blake2b(self._last, digest_size=_BYTES)
        key.update(self._tokens[start:end].tobytes())
        if end > length:
            key.update(self._generated(ids, max(start - length, 0), end - length).tobytes())
        for placeholder in self._prompt.placeholders:
            first, last = np.searchsorted(placeholder.positions, (start, end))
            if first < last:
                key.update(f"{placeholder.name}\0{placeholder.key}\0{first}\0".encode())
                key.update((placeholder.positions[first:last] - start).tobytes())
        self._last = key.digest()
        return self._last

    def _generated(self, ids: Sequence[int], start: int, end: int) -> NDArray[np.int64]:
        """The content of generated tokens, equal to that of the same tokens in the prompt of a later turn."""
        rows = np.empty((end - start, self._tokens.shape[1]), np.int64)
        rows[:, 0] = ids[start:end]
        rows[:, 1:] = np.arange(start, end)[:, None] + self._prompt.next_position
        return rows
