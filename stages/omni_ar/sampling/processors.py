"""Changes to logits before a draw, each row by its own settings, bit for bit as transformers makes them.

Order: repetition penalty, suppression, temperature, top-k, top-p. Functions return new tensors.

Shape legend: R rows, V vocabulary. Logits are fp32.
"""

import torch
from torch import Tensor

_NEVER = float("-inf")


def apply_repetition_penalty(logits_RV: Tensor, seen_RV: Tensor, penalty_R: Tensor) -> Tensor:
    """Divides positive and multiplies negative logits of seen ids (bool) by the row's penalty; 1 is off.

    Source: Keskar et al., 2019, arXiv:1909.05858.
    """
    penalty_R1 = penalty_R[:, None]
    penalized_RV = torch.where(logits_RV < 0, logits_RV * penalty_R1, logits_RV / penalty_R1)
    return torch.where(seen_RV, penalized_RV, logits_RV)


def apply_suppression(logits_RV: Tensor, suppressed: Tensor) -> Tensor:
    """Makes ids impossible. suppressed: bool `[R, V]`, or `[V]` for all rows."""
    return logits_RV.masked_fill(suppressed, _NEVER)


def apply_temperature(logits_RV: Tensor, temperature_R: Tensor) -> Tensor:
    """Divides by the row's temperature. Rows of temperature 0 are greedy, need no scale and keep theirs."""
    return logits_RV / torch.where(temperature_R == 0, 1, temperature_R)[:, None]


def keep_top(logits_RV: Tensor, top_k_R: Tensor | None, top_p_R: Tensor | None) -> Tensor:
    """Makes all but the likeliest ids impossible: the row's `top_k` first, then the fewest of these that reach `top_p`.

    top_k_R: int64; ids that tie with the last one kept stay too; 0 is off. top_p_R: 1 is off; give float64 for
    transformers' exact cut, which rounds `1 - top_p` once. None: off for every row, and cheaper.
    """
    if top_k_R is not None:
        logits_RV = logits_RV.masked_fill(logits_RV < _kth_largest(logits_RV, top_k_R), _NEVER)
    if top_p_R is not None:
        logits_RV = logits_RV.masked_fill(_outside_nucleus(logits_RV, top_p_R), _NEVER)
    return logits_RV


def warp(logits_RV: Tensor, temperature_R: Tensor, top_k_R: Tensor, top_p_R: Tensor) -> Tensor:
    """Temperature, top-k, top-p: see `apply_temperature` and `keep_top`."""
    return keep_top(apply_temperature(logits_RV, temperature_R), top_k_R, top_p_R)


def _kth_largest(logits_RV: Tensor, top_k_R: Tensor) -> Tensor:
    """The least logit that top-k keeps, `[R, 1]`."""
    vocab = logits_RV.shape[1]
    count_R = torch.where(top_k_R == 0, vocab, top_k_R.clamp(max=vocab))
    return logits_RV.sort(dim=-1).values.gather(1, (vocab - count_R)[:, None])


def _outside_nucleus(logits_RV: Tensor, top_p_R: Tensor) -> Tensor:
    """Which ids are not among the fewest whose probabilities reach the row's `top_p`, bool `[R, V]`."""
    # Which of several equal logits falls out is up to the sort: to agree with transformers it must be the same sort of
    # the same values, so neither a stable one nor the one that found the k-th largest.
    sorted_RV, id_RV = logits_RV.sort(dim=-1)
    tail_R = (1 - top_p_R.double()).float()
    removed_RV = sorted_RV.softmax(-1).cumsum(-1) <= tail_R[:, None]
    removed_RV[:, -1] = False
    removed_RV &= (top_p_R < 1)[:, None]
    return torch.empty_like(removed_RV).scatter_(1, id_RV, removed_RV)
