"""A cache of encoder outputs by content hash, with eviction of the least recently used."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import TypeAlias

from torch import Tensor

Outputs: TypeAlias = Mapping[str, Tensor]
"""Outputs of `EncoderModel.encode` for one item. Each tensor owns its memory."""


ContentKey: TypeAlias = tuple[str, str]
"""A request's cache salt and the hash of a media item's content."""


class OutputCache:
    """Outputs of at most `capacity` bytes in total.

    Eviction only drops a reference: the worker keeps the tensors of a payload until it is free.
    """

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
    """Bytes of device memory."""
    return sum(tensor.nbytes for tensor in outputs.values())
