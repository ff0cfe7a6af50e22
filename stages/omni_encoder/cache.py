"""Outputs of items: a cache by content hash, and those that requests still need."""

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from omni.stage import Produced

Outputs: TypeAlias = Mapping[str, Tensor]
"""Outputs of `EncoderModel.encode` for one item. Each tensor owns its memory."""

ContentKey: TypeAlias = tuple[str, str]
"""A request's cache salt and the hash of a media item's content."""


class OutputCache:
    """Outputs of at most `capacity` bytes in total: the least recently used are evicted. That only drops a reference: the worker
    keeps the tensors of a payload until it is free."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[ContentKey, Outputs] = OrderedDict()
        self.bytes_used = 0

    def get(self, key: ContentKey) -> Outputs | None:
        outputs = self._entries.get(key)
        if outputs is not None:
            self._entries.move_to_end(key)
        return outputs

    def add(self, key: ContentKey, outputs: Outputs) -> None:
        """Adds `outputs` under a new key, unless they alone exceed the capacity."""
        size = size_of(outputs)
        if size > self._capacity:
            return
        while self.bytes_used + size > self._capacity:
            self.bytes_used -= size_of(self._entries.popitem(last=False)[1])
        self._entries[key] = outputs
        self.bytes_used += size

    def clear(self) -> None:
        self._entries.clear()
        self.bytes_used = 0


def size_of(outputs: Outputs) -> int:
    return sum(tensor.nbytes for tensor in outputs.values())


_POLLED = 32
"""Maximum outputs that one tick checks: thousands may be held, most of them for a long time."""


@dataclass(frozen=True, slots=True)
class _Held:
    produced: Produced
    outputs: Outputs
    rank: tuple[int, int]


class HeldOutputs:
    """Keeps outputs until they are free, and counts their bytes, once for each request that shares them. They were allocated on the
    stage's stream, so their memory must not be released before readers on other streams are done: `Produced.free`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._held: deque[_Held] = deque()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def full(self) -> bool:
        return self._bytes >= self._limit

    @property
    def first_rank(self) -> tuple[int, int]:
        """The lowest rank of a request with held outputs. At the limit only requests up to it may add outputs: it could
        not progress otherwise, and all others progress after its end."""
        return min(held.rank for held in self._held)

    def add(self, produced: Produced, outputs: Outputs, rank: tuple[int, int]) -> None:
        self._held.append(_Held(produced, outputs, rank))
        self._bytes += size_of(outputs)

    def poll(self) -> bool:
        """Drops outputs that are free. Returns whether there were any."""
        before = len(self._held)
        for _ in range(min(before, _POLLED)):
            held = self._held.popleft()
            if held.produced.free:
                self._bytes -= size_of(held.outputs)
            else:
                self._held.append(held)
        return len(self._held) < before

    def clear(self) -> None:
        self._held.clear()
        self._bytes = 0
