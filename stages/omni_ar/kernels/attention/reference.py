"""Paged attention in plain torch: gathers pages, then calls scaled_dot_product_attention.

Shape legend: T tokens, R decode rows, P prompt rows, N blocks or rows of the stage, B slots per block, M blocks per row, H query
heads, K key and value heads, G = H / K, D head width, Q query tokens of one row, L keys.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def decode_attention(
    q_RHD: Tensor, key_NBKD: Tensor, value_NBKD: Tensor, table_RM: Tensor, lengths_R: Tensor, max_length: int
) -> Tensor:
    """Attends one token per row, all rows in one gather. max_length: upper bound of the rows' lengths."""
    block_size = key_NBKD.shape[1]
    table_RM = table_RM[:, : -(-max_length // block_size)]
    lengths_R1 = lengths_R[:, None]
    position_L = torch.arange(table_RM.shape[1] * block_size, device=q_RHD.device)
    beyond_RL = position_L >= lengths_R1
    k_RKLD, v_RKLD = (_gather_rows(pages, table_RM, beyond_RL) for pages in (key_NBKD, value_NBKD))
    # A row without keys attends to key 0, which is zeroed: the softmax over no keys differs between kernels.
    attended_RL = position_L < lengths_R1.clamp(min=1)
    # The G query heads that share a key head take the place of query tokens, so that no key is repeated.
    q_RKGD = q_RHD.unflatten(1, (k_RKLD.shape[1], -1))
    y_RKGD = F.scaled_dot_product_attention(q_RKGD, k_RKLD, v_RKLD, attn_mask=attended_RL[:, None, None])
    return y_RKGD.flatten(1, 2)


def prefill_attention(
    q_QHD: Tensor, key_NBKD: Tensor, value_NBKD: Tensor, table_M: Tensor, context_length: int
) -> Tensor:
    """Attends the Q tokens of one row, behind `context_length` keys of earlier batches."""
    length = context_length + q_QHD.shape[0]
    blocks_M = table_M[: -(-length // key_NBKD.shape[1])]
    k_KLD, v_KLD = (
        pages.index_select(0, blocks_M).flatten(0, 1)[:length].transpose(0, 1) for pages in (key_NBKD, value_NBKD)
    )
    mask_QL = _causal_mask(context_length, length, q_QHD.device) if context_length else None
    y_HQD = F.scaled_dot_product_attention(
        q_QHD.transpose(0, 1)[None], k_KLD[None], v_KLD[None], mask_QL, is_causal=mask_QL is None, enable_gqa=True
    )
    return y_HQD[0].transpose(0, 1)


def prefill_rows_attention(
    q_THD: Tensor, key_NBKD: Tensor, value_NBKD: Tensor, table_NM: Tensor, rows_P4: Tensor, first: int
) -> Tensor:
    """Attends P rows that only the device knows, in a batch whose tokens from `first` on are `q_THD`. Tokens without a
    row yield zeros.

    Each row is computed for every token and for its maximum number of keys; results of other rows' tokens are dropped.
    """
    token_T = torch.arange(first, first + q_THD.shape[0], device=q_THD.device)
    position_L = torch.arange(table_NM.shape[1] * key_NBKD.shape[1], device=q_THD.device)
    y_THD = torch.zeros_like(q_THD)
    for row, start, queries, context in (entry_4.unbind() for entry_4 in rows_P4.unbind()):
        offset_T = token_T - start
        beyond_1L = (position_L >= context + queries)[None]
        table_1M = table_NM.index_select(0, row[None])
        k_1KLD, v_1KLD = (_gather_rows(pages, table_1M, beyond_1L) for pages in (key_NBKD, value_NBKD))
        # Other rows' tokens see a key too: a softmax over no keys is NaN.
        seen_TL = position_L <= (context + offset_T).clamp(min=0)[:, None]
        y_HTD = F.scaled_dot_product_attention(q_THD.transpose(0, 1)[None], k_1KLD, v_1KLD, seen_TL, enable_gqa=True)[0]
        mine_T = (offset_T >= 0) & (offset_T < queries)
        y_THD = torch.where(mine_T[:, None, None], y_HTD.transpose(0, 1), y_THD)
    return y_THD


def _gather_rows(pages_NBKD: Tensor, table_RM: Tensor, beyond_RL: Tensor) -> Tensor:
    gathered = pages_NBKD.index_select(0, table_RM.flatten())
    pages_RLKD = gathered.view(*beyond_RL.shape, *pages_NBKD.shape[2:])
    # A mask gives stale entries zero weight, and zero times NaN is NaN: one request's overflow would affect others.
    return pages_RLKD.masked_fill_(beyond_RL[..., None, None], 0).transpose(1, 2)


def _causal_mask(context_length: int, length: int, device: torch.device) -> Tensor:
    position_L = torch.arange(length, device=device)
    return position_L <= position_L[context_length:, None]
