"""Penalties, biases and masks of logits before a draw, by row, with the same bits as transformers where it has them.

Functions return new tensors. Shape legend: R rows, V vocabulary, B biased ids, W words of L columns, S stop ids. Logits are fp32.
"""

import torch
from torch import Tensor

from omni_ar.kernels.sampling.state import ANYTHING, MAX_LOGIT, Need, SamplingState

MASKED = float("-inf")
"""The logit of an impossible id."""


def sanitize(logits_RV: Tensor) -> Tensor:
    """Masks NaN and clamps to `MAX_LOGIT`. So a row with an overflow fails, or draws the same id, on every device."""
    return torch.nan_to_num(logits_RV.float(), nan=MASKED, posinf=MAX_LOGIT, neginf=MASKED).clamp_(max=MAX_LOGIT)


def apply_penalties(logits_RV: Tensor, state: SamplingState, rows_R: Tensor, position_R: Tensor, needs: int) -> Tensor:
    """Logits after all penalties, biases and masks of their rows, in this order. needs: a superset of the rows' needs."""

    def of(values: Tensor) -> Tensor:
        return values.index_select(0, rows_R)

    vocab = logits_RV.shape[1]
    if needs & Need.REPETITION:
        logits_RV = apply_repetition_penalty(logits_RV, of(state.seen)[:, :vocab], of(state.repetition_penalty))
    if needs & Need.PENALTY:
        counts_RV, frequency_R, presence_R = of(state.counts), of(state.frequency_penalty), of(state.presence_penalty)
        logits_RV = apply_count_penalties(logits_RV, counts_RV[:, :vocab], frequency_R, presence_R)
    if needs & Need.BIAS:
        logits_RV = logits_RV.scatter_add(1, of(state.bias_ids), of(state.biases))
    if needs & Need.FORBIDDEN:
        logits_RV = apply_suppression(logits_RV, of(state.forbidden))
    if needs & Need.BAD_WORDS:
        logits_RV = apply_bad_words(logits_RV, of(state.bad_words), of(state.recent))
    if needs & Need.MIN_TOKENS:
        logits_RV = apply_min_tokens(logits_RV, of(state.stop_ids), position_R, of(state.min_tokens))
    return logits_RV


def apply_repetition_penalty(logits_RV: Tensor, seen_RV: Tensor, penalty_R: Tensor) -> Tensor:
    """Divides positive and multiplies negative logits of seen ids (bool) by the row's penalty; 1 is off (Keskar et al.,
    arXiv:1909.05858)."""
    penalty_R1 = penalty_R[:, None]
    penalized_RV = torch.where(logits_RV < 0, logits_RV * penalty_R1, logits_RV / penalty_R1)
    return torch.where(seen_RV, penalized_RV, logits_RV)


def apply_count_penalties(logits_RV: Tensor, counts_RV: Tensor, frequency_R: Tensor, presence_R: Tensor) -> Tensor:
    """Subtracts `frequency` for each time an id was generated (counts, integers), and `presence` once; 0 is off."""
    return logits_RV - (counts_RV * frequency_R[:, None] + (counts_RV > 0) * presence_R[:, None])


def apply_suppression(logits_RV: Tensor, suppressed: Tensor) -> Tensor:
    """Masks ids. suppressed: bool `[R, V]`, or `[V]` for all rows."""
    return logits_RV.masked_fill(suppressed, MASKED)


def apply_bad_words(logits_RV: Tensor, words_RWL: Tensor, recent_RH: Tensor) -> Tensor:
    """Masks the last token of each word whose other tokens match the newest ones. Both as in `SamplingState`, L = H + 1."""
    before_RWH, last_RW = words_RWL[..., :-1], words_RWL[..., -1]
    matches = (before_RWH == recent_RH[:, None]) | (before_RWH == ANYTHING)
    return _mask(logits_RV, last_RW, matches.all(-1))


def apply_min_tokens(logits_RV: Tensor, stop_ids_RS: Tensor, position_R: Tensor, min_tokens_R: Tensor) -> Tensor:
    """Masks stop ids (int64, padded with -1) before `min_tokens` tokens. position_R: number of generated tokens."""
    early_R1 = (position_R < min_tokens_R)[:, None]
    return _mask(logits_RV, stop_ids_RS, early_R1 & (stop_ids_RS >= 0))


def _mask(logits_RV: Tensor, ids: Tensor, when: Tensor) -> Tensor:
    """Masks each row's ids where `when` holds; other ids may have any value below V."""
    bias = torch.zeros_like(ids, dtype=logits_RV.dtype).masked_fill(when, MASKED)
    return logits_RV.scatter_add(1, ids.clamp(min=0), bias)
