"""Paged storage of keys and values.

Shape legend: L layers, N blocks, B slots per block, K key and value heads, D head width, T tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of all layers, `[L, N, B, K, D]` each. Slot s is offset s % B of block s // B.

    Block 0 is the null block: it absorbs the writes of padding and stopped rows, and its content is undefined. Only
    forward phases on the stage's own stream write the cache. A block is reused once its request has released it.
    """

    key: Tensor
    value: Tensor

    @classmethod
    def allocate(
        cls,
        zeros: Callable[[tuple[int, ...], torch.dtype], Tensor],
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> "KVCache":
        """zeros: allocates zeroed device memory (`Device.zeros`). num_blocks: includes the null block."""
        shape = (num_layers, num_blocks, block_size, num_kv_heads, head_dim)
        return cls(zeros(shape, dtype), zeros(shape, dtype))

    @property
    def block_size(self) -> int:
        return self.key.shape[2]

    def write(self, layer: int, k_TKD: Tensor, v_TKD: Tensor, slots_T: Tensor) -> None:
        """Stores the tokens' keys and values into their slots (int64). Only slots of the null block may repeat."""
        for pages, new_TKD in ((self.key, k_TKD), (self.value, v_TKD)):
            pages[layer].flatten(0, 1).index_copy_(0, slots_T, new_TKD.to(pages.dtype))
