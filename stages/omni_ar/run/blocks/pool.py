"""The stage's blocks: reference counts, the table of each request, and cached prefixes, by keys of their content: blocks with equal
keys have equal keys and values, and equal hidden states."""

import hashlib
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from omni.stage import Produced
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
        tokens = np.empty((end - start, self._tokens.shape[1]), np.int64)
        tokens[:, 0] = ids[start:end]
        tokens[:, 1:] = np.arange(start, end)[:, None] + self._prompt.next_position
        return tokens


NULL_BLOCK = 0
"""Never allocated: it absorbs the writes of stopped rows."""

BlockKey = bytes
"""Covers all inputs that the content of a full block depends on; see `prefix.PrefixKeys`."""


class BlockPool:
    """Blocks by reference count. Payload pages share the numbering, so one pool serves both.

    | a block is | when | may be written by |
    |---|---|---|
    | free | without users, its content undefined | none |
    | used | its reference count is above 0 | the request that allocated it, until it is published |
    | cached | published under a key, with or without users | none |
    | idle | cached, without users: kept until space is needed, the least recently used evicted first | none |
    """

    def __init__(self, num_blocks: int) -> None:
        self.capacity = num_blocks
        self.evictions = 0
        self._free = list(range(num_blocks, NULL_BLOCK, -1))
        self._users = [0] * (num_blocks + 1)
        self._stored = [0] * (num_blocks + 1)
        self._key_of: dict[int, BlockKey] = {}
        self._block_of: dict[BlockKey, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Number of blocks that `allocate` could return."""
        return len(self._free) + len(self._idle)

    @property
    def blank(self) -> int:
        """Number of blocks without users and without cached content."""
        return len(self._free)

    @property
    def used(self) -> int:
        return self.capacity - self.available

    @property
    def cached(self) -> int:
        return len(self._key_of)

    def sole(self, tables: Iterable[NDArray[np.int64]]) -> int:
        """Number of blocks that would become available if all these tables were released: those without other users."""
        uses = Counter(block for table in tables for block in table.tolist())
        return sum(self._users[block] == count for block, count in uses.items())

    def allocate(self, count: int) -> list[int]:
        """Returns `count` blocks of undefined content for one writer. The caller has checked `available`."""
        if count > self.available:
            raise RuntimeError(f"{count} blocks wanted, {self.available} free")
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._users[block] = 1
            self._stored[block] = 0
        return blocks

    def match(self, keys: Sequence[BlockKey], needed: Sequence[int]) -> list[int]:
        """Takes the longest cached prefix into use. needed: for each key, the offsets (as bits) whose payload must be stored."""
        blocks: list[int] = []
        for key, offsets in zip(keys, needed, strict=True):
            block = self._block_of.get(key)
            if block is None or offsets & ~self._stored[block]:
                break
            if not self._users[block]:
                del self._idle[block]
            self._users[block] += 1
            blocks.append(block)
        return blocks

    def store(self, block: int, offsets: int) -> None:
        """Records that payload was written at these offsets (as bits) of a block in use."""
        self._stored[block] |= offsets

    def cache(self, block: int, key: BlockKey) -> None:
        """Publishes a full block in use, for other requests to share. Of two with the same key, the one with more payload stays."""
        known = self._block_of.get(key)
        if block in self._key_of or (known is not None and not self._stored[block] & ~self._stored[known]):
            return
        if known is not None:
            self._forget(known)
            if known in self._idle:
                del self._idle[known]
                self._free.append(known)
        self._key_of[block], self._block_of[key] = key, block

    def release(self, blocks: Sequence[int]) -> None:
        """Removes one user of each block. The end of a prefix depends on its beginning, and is evicted before it."""
        for block in reversed(blocks):
            if not self._users[block]:
                raise RuntimeError(f"block {block} was released more often than it was taken")
            self._users[block] -= 1
            if self._users[block]:
                continue
            if block in self._key_of:
                self._idle[block] = None
            else:
                self._free.append(block)

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        self._forget(block)
        self.evictions += 1
        return block

    def _forget(self, block: int) -> None:
        del self._block_of[self._key_of.pop(block)]


@dataclass(slots=True, eq=False)
class BlockTable:
    """A request's blocks in order. A preempted request gets a new table. unread: launched steps whose tokens and payload the host
    has not emitted. produced: payloads in the blocks that consumers may still read, each with one page slice."""

    owner: str
    ids: NDArray[np.int64]
    count: int = 0
    unread: int = 0
    produced: deque[Produced] = field(default_factory=deque)

    @classmethod
    def of(cls, owner: str, blocks: Sequence[int], max_blocks: int) -> "BlockTable":
        table = cls(owner, np.zeros(max_blocks, np.int64))
        for block in blocks:
            table.append(block)
        return table

    @property
    def blocks(self) -> NDArray[np.int64]:
        return self.ids[: self.count]

    def append(self, block: int) -> None:
        self.ids[self.count] = block
        self.count += 1

    def add(self, produced: Produced) -> None:
        # Consumers read payloads in order, so the free ones are at the front.
        while self.produced and self.produced[0].free:
            self.produced.popleft()
        self.produced.append(produced)

    def slots(self, positions: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
        """Flat slots of token positions: `ids[position // block_size] * block_size + position % block_size`."""
        return self.ids[positions // block_size] * block_size + positions % block_size
