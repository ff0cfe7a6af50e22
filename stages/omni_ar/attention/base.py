"""The paged storage of keys and values, and the contract between layers and attention backends.

A batch is flat. Its T tokens are `num_decode` decode rows of one token each, then the prefill rows, then padding.

Shape legend: T tokens, R decode rows, P prefill rows, N rows of the stage, M blocks per row, H query heads, D head width. Of the
cache: L layers, N blocks, B slots per block, K key and value heads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from omni_ar.kernels.attention.features import PLAIN, AttentionFeatures
from omni_ar.kernels.attention.reference import gather_rows


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

    def gather(self, layer: int, table_RM: Tensor, lengths_R: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the rows' keys and values, `[R, K, L, D]` each, in the order of positions. L = M * B. For attention in plain
        torch.

        table_RM, lengths_R: int64, blocks of each row and its number of keys. Entries from a row's length on are zeros: the pages
        may hold NaN there, which a weight of zero does not remove.
        """
        position_L = torch.arange(table_RM.shape[1] * self.block_size, device=table_RM.device)
        beyond_RL = position_L >= lengths_R[:, None]
        return (
            gather_rows(self.key[layer], table_RM, beyond_RL),
            gather_rows(self.value[layer], table_RM, beyond_RL),
        )


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """A prompt, or a chunk of one, with counts that the host knows. start: index of its first token in the batch. query_length: its
    tokens in this batch. context_length: its keys that earlier batches have put into the cache. block_table_M: int64, the row's
    blocks in order; entries past its last key are not read."""

    start: int
    query_length: int
    context_length: int
    block_table_M: Tensor


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """The layout of a batch for attention. All tensors are int64 on the device.

    slots_T: KV slot of each token. decode_block_table_RM: blocks of each decode row, padded with any valid block. decode_lengths_R:
    number of keys that each decode row attends to, its new token included. decode_max_length: upper bound of these, known to the
    host; at most M blocks' worth. decode_positions: as many consecutive decode rows are positions of one row, its newest token and
    its drafts; R is a multiple. The first one's blocks are those of all. prefills: the prefill rows, on the host. prefill_rows_P4:
    the same on the device, each as row, start, query length and context length. block_table_NM: blocks of every row of the stage.
    Both may be None without prefills. In a captured batch only the device knows the prefills: `prefills` is empty, and an entry of
    `prefill_rows_P4` of query length 0 is unused.
    """

    slots_T: Tensor
    num_decode: int
    decode_block_table_RM: Tensor
    decode_lengths_R: Tensor
    decode_max_length: int
    prefills: tuple[PrefillRow, ...] = ()
    prefill_rows_P4: Tensor | None = None
    block_table_NM: Tensor | None = None
    decode_positions: int = 1


class AttentionBackend(Protocol):
    """Causal softmax attention with scale D ** -0.5, or as a layer's `AttentionFeatures` specify. H is a multiple of the cache's
    heads: query heads h * G to h * G + G - 1 share key head h. An implementation never synchronizes with the device.

    `attend` of a batch without prefill rows can be captured in a CUDA graph. A row of length 0 yields zeros, as do tokens after
    the last prefill row of a captured batch. Cache content beyond a row's length, NaN included, does not affect its output.
    """

    @property
    def name(self) -> str: ...

    @property
    def captures_prefills(self) -> bool:
        """Whether the backend supports prefill rows that only the device knows, so that batches with prompts can be captured."""

    def attend(
        self,
        q_THD: Tensor,
        cache: KVCache,
        layer: int,
        meta: AttentionMetadata,
        features: AttentionFeatures = PLAIN,
    ) -> Tensor:
        """Returns `[T, H, D]` for queries `[T, H, D]`. The batch's keys and values are in the cache already.

        Raises ConfigError for features that the backend does not have. On a GPU every layer runs at start, when the memory of the
        largest steps is measured, so no request meets it."""
