"""The plain torch backend: gathers pages, then calls scaled_dot_product_attention. Runs wherever torch does.

Shape legend: T tokens, R decode rows, M blocks per row, H query heads, K key and value heads, G = H / K, D head width,
Q query tokens of one row, L keys.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from omni_ar.attention.base import AttentionMetadata, PrefillRow
from omni_ar.attention.kv_cache import KVCache


class TorchPagedAttention:
    """Decode rows in one batched gather, prefill rows one by one."""

    name = "torch"

    def attend(self, q_THD: Tensor, cache: KVCache, layer: int, meta: AttentionMetadata) -> Tensor:
        """See `AttentionBackend.attend`."""
        parts = []
        if meta.num_decode:
            parts.append(_decode(q_THD[: meta.num_decode], cache, layer, meta))
        for row in meta.prefills:
            parts.append(_prefill(q_THD[row.start : row.start + row.query_length], cache, layer, row))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode(q_RHD: Tensor, cache: KVCache, layer: int, meta: AttentionMetadata) -> Tensor:
    blocks = -(-meta.decode_max_length // cache.block_size)
    table_RM = meta.decode_block_table_RM[:, :blocks]
    lengths_R1 = meta.decode_lengths_R[:, None]
    position_L = torch.arange(table_RM.shape[1] * cache.block_size, device=q_RHD.device)
    beyond_RL = position_L >= lengths_R1
    k_RKLD, v_RKLD = (_gather_rows(pages[layer], table_RM, beyond_RL) for pages in (cache.key, cache.value))
    # A row without keys attends to its first one, which is zeroed: kernels differ in what softmax over nothing gives.
    attended_RL = position_L < lengths_R1.clamp(min=1)
    # The G query heads that share a key head stand where query tokens would: no key is repeated.
    q_RKGD = q_RHD.unflatten(1, (k_RKLD.shape[1], -1))
    y_RKGD = F.scaled_dot_product_attention(q_RKGD, k_RKLD, v_RKLD, attn_mask=attended_RL[:, None, None])
    return y_RKGD.flatten(1, 2)


def _gather_rows(pages_NBKD: Tensor, table_RM: Tensor, beyond_RL: Tensor) -> Tensor:
    gathered = pages_NBKD.index_select(0, table_RM.flatten())
    pages_RLKD = gathered.view(*beyond_RL.shape, *pages_NBKD.shape[2:])
    # A mask weighs stale entries with zero, and zero times NaN is NaN: one request's overflow would reach others.
    return pages_RLKD.masked_fill_(beyond_RL[..., None, None], 0).transpose(1, 2)


def _prefill(q_QHD: Tensor, cache: KVCache, layer: int, row: PrefillRow) -> Tensor:
    length = row.context_length + row.query_length
    blocks_M = row.block_table_M[: -(-length // cache.block_size)]
    k_KLD, v_KLD = (
        pages[layer].index_select(0, blocks_M).flatten(0, 1)[:length].transpose(0, 1)
        for pages in (cache.key, cache.value)
    )
    mask_QL = _causal_mask(row, q_QHD.device) if row.context_length else None
    y_HQD = F.scaled_dot_product_attention(
        q_QHD.transpose(0, 1)[None], k_KLD[None], v_KLD[None], mask_QL, is_causal=mask_QL is None, enable_gqa=True
    )
    return y_HQD[0].transpose(0, 1)


def _causal_mask(row: PrefillRow, device: torch.device) -> Tensor:
    position_L = torch.arange(row.context_length + row.query_length, device=device)
    return position_L <= position_L[row.context_length :, None]
