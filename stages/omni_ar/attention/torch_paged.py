"""The plain torch backend, for every device of torch.

Shape legend: T tokens, H query heads, D head width.
"""

import torch
from torch import Tensor

from omni_ar.attention.base import AttentionMetadata, KVCache
from omni_ar.kernels.attention.features import PLAIN, AttentionFeatures
from omni_ar.kernels.attention.reference import decode_attention, prefill_attention, prefill_rows_attention


class TorchPagedAttention:
    """Attends decode rows in one batched gather, and prefill rows one by one. In a captured batch each prefill row
    processes all tokens of the batch, so capturing prefills is possible but slow."""

    name = "torch"
    captures_prefills = True

    def attend(
        self,
        q_THD: Tensor,
        cache: KVCache,
        layer: int,
        meta: AttentionMetadata,
        features: AttentionFeatures = PLAIN,
    ) -> Tensor:
        key, value = cache.key[layer], cache.value[layer]
        parts = []
        if meta.num_decode:
            table_RM, lengths_R = meta.decode_block_table_RM, meta.decode_lengths_R
            q_RHD = q_THD[: meta.num_decode]
            longest = meta.decode_max_length
            positions = meta.decode_positions
            parts.append(decode_attention(q_RHD, key, value, table_RM, lengths_R, longest, features, positions))
        for row in meta.prefills:
            q_QHD = q_THD[row.start : row.start + row.query_length]
            parts.append(prefill_attention(q_QHD, key, value, row.block_table_M, row.context_length, features))
        if meta.prefill_rows_P4 is not None and not meta.prefills:
            table_NM, rows_P4, first = meta.block_table_NM, meta.prefill_rows_P4, meta.num_decode
            assert table_NM is not None
            parts.append(prefill_rows_attention(q_THD[first:], key, value, table_NM, rows_P4, first, features))
        return parts[0] if len(parts) == 1 else torch.cat(parts)
