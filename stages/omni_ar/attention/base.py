"""The contract between layers and attention backends.

A batch is flat: T tokens, first `num_decode` rows of one token each, then the prefill rows one after another, then padding.

Shape legend: T tokens, R decode rows, P prefill rows, N rows of the stage, M blocks per row, H query heads, D head width.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from omni_ar.attention.kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """A prompt, or a chunk of one. The counts are known to the host.

    start: index of its first token in the batch. query_length: its tokens in this batch.
    context_length: its keys already in the cache from earlier batches.
    block_table_M: int64 blocks of the row in order; entries past its last key are not read.
    """

    start: int
    query_length: int
    context_length: int
    block_table_M: Tensor


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """What attention must know about a batch. All tensors are int64 on the device.

    slots_T: KV slot of each token. decode_block_table_RM: blocks of each decode row, padded with any valid block.
    decode_lengths_R: keys that each decode row attends to, its new token included. decode_max_length: no decode row is
    longer (a bound that the host knows; at most M blocks' worth).
    prefills: prompts and chunks, as the host knows them. prefill_rows_P4: the same on the device: row, start, query length and
    context length of each; block_table_NM: blocks of every row of the stage. They may be None where there are no prefills.
    Of a captured batch only the device knows the prefills: `prefills` is empty, `prefill_rows_P4` has room for P of them, and those
    of query length 0 are none.
    """

    slots_T: Tensor
    num_decode: int
    decode_block_table_RM: Tensor
    decode_lengths_R: Tensor
    decode_max_length: int
    prefills: tuple[PrefillRow, ...] = ()
    prefill_rows_P4: Tensor | None = None
    block_table_NM: Tensor | None = None


class AttentionBackend(Protocol):
    """Causal softmax attention with scale D ** -0.5. H is a multiple of the cache's heads: query heads h * G to
    h * G + G - 1 share key head h.

    An implementation never synchronizes with the device, and `attend` of a batch without prefill rows can be captured in a CUDA
    graph. A row of length 0 yields zeros, as do tokens behind the last prefill row of a captured batch, and what lies in the cache
    beyond a row's length, NaN included, does not reach its output.
    """

    @property
    def name(self) -> str: ...

    @property
    def captures_prefills(self) -> bool:
        """Whether it takes prefill rows that only the device knows, so that batches with prompts can be captured too."""
        ...

    def attend(self, q_THD: Tensor, cache: KVCache, layer: int, meta: AttentionMetadata) -> Tensor:
        """`[T, H, D]` to `[T, H, D]`. This batch's keys and values are in the cache already."""
        ...
