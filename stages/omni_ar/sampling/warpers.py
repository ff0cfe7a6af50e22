"""Warpers narrow the distribution of a draw, by row, bit for bit as in transformers.

Order: temperature, top-k, top-p, min-p. Functions return new tensors. Shape legend: R rows, V vocabulary. Logits are fp32.
"""

import torch
from torch import Tensor

from omni_ar.kernels.sampling.state import Need, SamplingState
from omni_ar.sampling.penalties import MASKED


def apply_temperature(logits_RV: Tensor, temperature_R: Tensor) -> Tensor:
    """Divides by the row's temperature. Rows of temperature 0 are greedy and keep their logits."""
    return logits_RV / torch.where(temperature_R == 0, 1, temperature_R)[:, None]


def keep_top(
    logits_RV: Tensor, top_k_R: Tensor | None, top_p_R: Tensor | None, min_p_R: Tensor | None = None
) -> Tensor:
    """Masks all but the row's `top_k` most likely ids; of these all but the fewest that reach `top_p`; and of these all that
    are less than `min_p` times as likely as the most likely.

    top_k_R: int64; ids that tie with the last one kept stay too; 0 is off. top_p_R: 1 is off; float64 gives transformers'
    exact cut, which rounds `1 - top_p` once. min_p_R: fp32; 0 is off. None: off for every row, and cheaper.
    """
    if top_k_R is not None:
        logits_RV = logits_RV.masked_fill(logits_RV < _kth_largest(logits_RV, top_k_R), MASKED)
    if top_p_R is not None:
        logits_RV = logits_RV.masked_fill(_outside_nucleus(logits_RV, top_p_R), MASKED)
    if min_p_R is not None:
        logits_RV = logits_RV.masked_fill(_too_unlikely(logits_RV, min_p_R), MASKED)
    return logits_RV


def warp(
    logits_RV: Tensor,
    temperature_R: Tensor,
    top_k_R: Tensor | None,
    top_p_R: Tensor | None,
    min_p_R: Tensor | None = None,
) -> Tensor:
    """Temperature, top-k, top-p, min-p: see `apply_temperature` and `keep_top`."""
    return keep_top(apply_temperature(logits_RV, temperature_R), top_k_R, top_p_R, min_p_R)


def warp_tokens(logits_RV: Tensor, state: SamplingState, rows_R: Tensor, needs: int) -> Tensor:
    """`warp` by the rows' parameters of tokens. needs: at least the rows' own."""
    return warp(
        logits_RV,
        state.temperature.index_select(0, rows_R),
        state.top_k.index_select(0, rows_R) if needs & Need.TOP_K else None,
        state.top_p.index_select(0, rows_R) if needs & Need.TOP_P else None,
        state.min_p.index_select(0, rows_R) if needs & Need.MIN_P else None,
    )


def warp_codes(logits_RV: Tensor, state: SamplingState, rows_R: Tensor, needs: int) -> Tensor:
    """`warp` by the rows' parameters of the codes of a frame after the first. needs: at least the rows' own."""
    return warp(
        logits_RV,
        state.code_temperature.index_select(0, rows_R),
        state.code_top_k.index_select(0, rows_R) if needs & Need.CODE_TOP_K else None,
        state.code_top_p.index_select(0, rows_R) if needs & Need.CODE_TOP_P else None,
    )


def _kth_largest(logits_RV: Tensor, top_k_R: Tensor) -> Tensor:
    """The smallest logit that top-k keeps, `[R, 1]`."""
    vocab = logits_RV.shape[1]
    count_R = torch.where(top_k_R == 0, vocab, top_k_R.clamp(max=vocab))
    return logits_RV.sort(dim=-1).values.gather(1, (vocab - count_R)[:, None])


def _outside_nucleus(logits_RV: Tensor, top_p_R: Tensor) -> Tensor:
    """Whether an id is not among the fewest whose probabilities reach the row's `top_p`, bool `[R, V]`."""
    # The sort decides which of several equal logits falls out: to agree with transformers it must be the same sort of the
    # same values, neither a stable one nor the one that found the k-th largest.
    sorted_RV, id_RV = logits_RV.sort(dim=-1)
    tail_R = (1 - top_p_R.double()).float()
    removed_RV = sorted_RV.softmax(-1).cumsum(-1) <= tail_R[:, None]
    removed_RV[:, -1] = False
    removed_RV &= (top_p_R < 1)[:, None]
    return torch.empty_like(removed_RV).scatter_(1, id_RV, removed_RV)


def _too_unlikely(logits_RV: Tensor, min_p_R: Tensor) -> Tensor:
    """Whether an id is less than `min_p` times as likely as the most likely, bool `[R, V]`."""
    probability_RV = logits_RV.softmax(-1)
    return probability_RV < probability_RV.amax(-1, keepdim=True) * min_p_R[:, None]
