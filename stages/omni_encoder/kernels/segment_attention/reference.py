"""Attention within segments in plain torch. Shape legend: see the package."""

from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attend_segments(
    q_SHW: Tensor,
    k_SHW: Tensor,
    v_SHW: Tensor,
    bounds_S2: Tensor,
    lengths: tuple[int, ...] | None,
    scale: float,
) -> Tensor:
    """Computes segment by segment if the host has the lengths, else with a mask, whose work is independent of the
    segments. The two add up keys in different tiles, so they round differently."""
    if lengths is None:
        return _masked(q_SHW, k_SHW, v_SHW, bounds_S2, scale)
    return _split(q_SHW, k_SHW, v_SHW, lengths, scale)


def _split(q_SHW: Tensor, k_SHW: Tensor, v_SHW: Tensor, lengths: tuple[int, ...], scale: float) -> Tensor:
    """Adjacent segments of equal length are computed together."""
    parts, start = [], 0
    for length, run in groupby(lengths):
        count = len(list(run))
        end = start + length * count
        q, k, v = (t[start:end].unflatten(0, (count, length)).transpose(1, 2) for t in (q_SHW, k_SHW, v_SHW))
        parts.append(scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).flatten(0, 1))
        start = end
    return torch.cat(parts)


def _masked(q_SHW: Tensor, k_SHW: Tensor, v_SHW: Tensor, bounds_S2: Tensor, scale: float) -> Tensor:
    index_S = torch.arange(bounds_S2.shape[0], device=bounds_S2.device)
    start_S1, end_S1 = bounds_S2[:, :1], bounds_S2[:, 1:]
    padding_S1 = end_S1 == 0
    # Attention to no keys is undefined: padding attends to all keys, and its result is cleared.
    seen_SS = ((index_S >= start_S1) & (index_S < end_S1)) | padding_S1
    q, k, v = (t.transpose(0, 1)[None] for t in (q_SHW, k_SHW, v_SHW))
    attended = scaled_dot_product_attention(q, k, v, attn_mask=seen_SS, scale=scale)
    return attended[0].transpose(0, 1).masked_fill(padding_S1[:, None], 0)
