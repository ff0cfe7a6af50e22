"""Paged attention in plain torch: gathers pages, then calls scaled_dot_product_attention, or computes the scores itself for
features that the former lacks.

Shape legend: T tokens, R decode rows, P prompt rows, N blocks or rows of the stage, B slots per block, M blocks per row, H query
heads, K key and value heads, G = H / K, D head width, Q query tokens of one row, L keys.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from omni_ar.kernels.attention.features import PLAIN, AttentionFeatures


def decode_attention(
    q_RHD: Tensor,
    key_NBKD: Tensor,
    value_NBKD: Tensor,
    table_RM: Tensor,
    lengths_R: Tensor,
    max_length: int,
    features: AttentionFeatures = PLAIN,
    positions: int = 1,
) -> Tensor:
    """Attends one token per row, all rows in one gather. max_length: upper bound of the rows' lengths. With a window, only the
    blocks that it may touch are gathered. positions: as of `attend_decodes`."""
    if positions > 1:
        table_RM = table_RM[::positions].repeat_interleave(positions, 0)
    block_size, lengths_R1 = key_NBKD.shape[1], lengths_R[:, None]
    table_RM = table_RM[:, : -(-max_length // block_size)]
    # A row without keys attends to key 0, which is zeroed: the softmax over no keys differs between kernels.
    end_R1 = lengths_R1.clamp(min=1)
    if features.window is None:
        position_RL = torch.arange(table_RM.shape[1] * block_size, device=q_RHD.device)[None]
        beyond_RL, attended_RL = position_RL >= lengths_R1, position_RL < end_R1
    else:
        begin_R1 = (lengths_R1 - features.window).clamp(min=0)
        table_RM, position_RL = _blocks_of_window(table_RM, begin_R1, block_size, features.window)
        outside_RL = position_RL < begin_R1
        beyond_RL, attended_RL = (position_RL >= lengths_R1) | outside_RL, (position_RL < end_R1) & ~outside_RL
    k_RKLD, v_RKLD = (gather_rows(pages, table_RM, beyond_RL) for pages in (key_NBKD, value_NBKD))
    if _has_other_scores(features):
        distance_RL = position_RL - lengths_R1 + 1
        q_RH1D, shape = q_RHD[:, :, None], (attended_RL[:, None], distance_RL[:, None])
        return _attend_by_scores(q_RH1D, k_RKLD, v_RKLD, *shape, features)[:, :, 0]
    # The G query heads that share a key head take the place of query tokens, so that no key is repeated.
    q_RKGD = q_RHD.unflatten(1, (k_RKLD.shape[1], -1))
    mask_R11L, scale = attended_RL[:, None, None], features.scale
    y_RKGD = F.scaled_dot_product_attention(q_RKGD, k_RKLD, v_RKLD, attn_mask=mask_R11L, scale=scale)
    return y_RKGD.flatten(1, 2)


def prefill_attention(
    q_QHD: Tensor,
    key_NBKD: Tensor,
    value_NBKD: Tensor,
    table_M: Tensor,
    context_length: int,
    features: AttentionFeatures = PLAIN,
) -> Tensor:
    """Attends the Q tokens of one row, after `context_length` keys of earlier batches. With a window, blocks before that of the
    first token are not read."""
    block_size, length = key_NBKD.shape[1], context_length + q_QHD.shape[0]
    skipped = max(context_length + 1 - features.window, 0) // block_size if features.window is not None else 0
    blocks_M = table_M[skipped : -(-length // block_size)]
    context_length, length = context_length - skipped * block_size, length - skipped * block_size
    k_KLD, v_KLD = (
        pages.index_select(0, blocks_M).flatten(0, 1)[:length].transpose(0, 1) for pages in (key_NBKD, value_NBKD)
    )
    q_HQD = q_QHD.transpose(0, 1)
    if not context_length and features.window is None and not _has_other_scores(features):
        y_HQD = F.scaled_dot_product_attention(
            q_HQD[None], k_KLD[None], v_KLD[None], is_causal=True, scale=features.scale, enable_gqa=True
        )[0]
    else:
        position_L = torch.arange(length, device=q_QHD.device)
        distance_QL = position_L - position_L[context_length:, None]
        y_HQD = _attend_seen(q_HQD, k_KLD, v_KLD, _seen(distance_QL, features), distance_QL, features)
    return y_HQD.transpose(0, 1)


def prefill_rows_attention(
    q_THD: Tensor,
    key_NBKD: Tensor,
    value_NBKD: Tensor,
    table_NM: Tensor,
    rows_P4: Tensor,
    first: int,
    features: AttentionFeatures = PLAIN,
) -> Tensor:
    """Attends P rows whose numbers are on the device only, in a batch whose tokens from `first` on are `q_THD`. Tokens without a
    row yield zeros.

    Each row is computed for every token and for its maximum number of keys; results of other rows' tokens are dropped.
    """
    token_T = torch.arange(first, first + q_THD.shape[0], device=q_THD.device)
    position_L = torch.arange(table_NM.shape[1] * key_NBKD.shape[1], device=q_THD.device)
    y_THD = torch.zeros_like(q_THD)
    for row, start, queries, context in (entry_4.unbind() for entry_4 in rows_P4.unbind()):
        offset_T = token_T - start
        mine_T = (offset_T >= 0) & (offset_T < queries)
        beyond_1L = (position_L >= context + queries)[None]
        table_1M = table_NM.index_select(0, row[None])
        k_1KLD, v_1KLD = (gather_rows(pages, table_1M, beyond_1L) for pages in (key_NBKD, value_NBKD))
        # Other rows' tokens attend to a key too: a softmax over no keys is NaN.
        position_T1 = torch.where(mine_T, context + offset_T, 0)[:, None]
        distance_TL = position_L - position_T1
        seen_TL = _seen(distance_TL, features)
        y_HTD = _attend_seen(q_THD.transpose(0, 1), k_1KLD[0], v_1KLD[0], seen_TL, distance_TL, features)
        y_THD = torch.where(mine_T[:, None, None], y_HTD.transpose(0, 1), y_THD)
    return y_THD


def gather_rows(pages_NBKD: Tensor, table_RM: Tensor, beyond_RL: Tensor) -> Tensor:
    """The rows' keys or values `[R, K, L, D]`, with zeros where `beyond_RL` is set."""
    gathered = pages_NBKD.index_select(0, table_RM.flatten())
    pages_RLKD = gathered.view(*beyond_RL.shape, *pages_NBKD.shape[2:])
    # A mask gives stale entries zero weight, and zero times NaN is NaN: one request's overflow would affect others.
    return pages_RLKD.masked_fill_(beyond_RL[..., None, None], 0).transpose(1, 2)


def _blocks_of_window(table_RM: Tensor, begin_R1: Tensor, block_size: int, window: int) -> tuple[Tensor, Tensor]:
    """The blocks of each row from that of position `begin_R1` on, as many as a window may touch, and the positions of their
    slots."""
    columns = table_RM.shape[1]
    touched = min(columns, -(-(window - 1) // block_size) + 1)
    column_RM = begin_R1 // block_size + torch.arange(touched, device=table_RM.device)
    position_RL = (column_RM[..., None] * block_size + torch.arange(block_size, device=table_RM.device)).flatten(1)
    # A column past the end of the table has positions past the end of its row.
    return table_RM.gather(1, column_RM.clamp(max=columns - 1)), position_RL


def _seen(distance_QL: Tensor, features: AttentionFeatures) -> Tensor:
    """Mask of the keys that a token attends to. distance_QL: key position minus query position."""
    if features.window is None:
        return distance_QL <= 0
    return (distance_QL <= 0) & (distance_QL > -features.window)


def _has_other_scores(features: AttentionFeatures) -> bool:
    """Whether the scores are more than scaled products."""
    return not (features.softcap is None and features.alibi_slopes is None and features.sinks is None)


def _attend_seen(
    q_HQD: Tensor, k_KLD: Tensor, v_KLD: Tensor, seen_QL: Tensor, distance_QL: Tensor, features: AttentionFeatures
) -> Tensor:
    q_1HQD, k_1KLD, v_1KLD = q_HQD[None], k_KLD[None], v_KLD[None]
    if _has_other_scores(features):
        return _attend_by_scores(q_1HQD, k_1KLD, v_1KLD, seen_QL[None], distance_QL[None], features)[0]
    return F.scaled_dot_product_attention(q_1HQD, k_1KLD, v_1KLD, seen_QL, scale=features.scale, enable_gqa=True)[0]


def _attend_by_scores(
    q_RHQD: Tensor, k_RKLD: Tensor, v_RKLD: Tensor, seen_RQL: Tensor, distance_RQL: Tensor, features: AttentionFeatures
) -> Tensor:
    """Attention whose softmax is over more than scaled products, in float32 at least. Every token attends to a key."""
    rows, heads, queries, head_dim = q_RHQD.shape
    kv_heads, length = k_RKLD.shape[1:3]
    groups = (kv_heads, heads // kv_heads)
    exact = torch.promote_types(q_RHQD.dtype, torch.float32)
    # The tokens of the G heads that share a key head are one dimension, so that no key is repeated.
    q_RKXD = q_RHQD.reshape(rows, kv_heads, -1, head_dim).to(exact)
    scores_RKXL = q_RKXD @ k_RKLD.to(exact).transpose(2, 3) * features.scale_of(head_dim)
    scores = scores_RKXL.view(rows, *groups, queries, length)
    if features.softcap is not None:
        scores = features.softcap * torch.tanh(scores / features.softcap)
    if features.alibi_slopes is not None:
        scores = scores + features.alibi_slopes.view(*groups, 1, 1) * distance_RQL[:, None, None]
    scores = scores.masked_fill(~seen_RQL[:, None, None], float("-inf"))
    if features.sinks is not None:
        sinks = features.sinks.to(exact).view(*groups, 1, 1).expand(rows, -1, -1, queries, 1)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1)[..., :length]
    y_RKXD = weights.reshape(scores_RKXL.shape) @ v_RKLD.to(exact)
    return y_RKXD.view(q_RHQD.shape).to(q_RHQD.dtype)
