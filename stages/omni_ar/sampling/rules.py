"""What a request's rules make of logits before a draw, each row by its own, bit for bit as transformers does where it has them.

Functions return new tensors. Shape legend: R rows, V vocabulary, B biased ids, W words of L columns, S stop ids. Logits are fp32.
"""

import torch
from torch import Tensor

from omni_ar.sampling.state import ANYTHING, SOMETHING

NO_CHANCE = float("-inf")

MOST = 1e30
"""No model means more."""


def meant(logits_RV: Tensor) -> Tensor:
    """Logits that can be computed with: one that is NaN is impossible, one above `MOST` is `MOST`. A model that overflowed in a row
    fails that row or says something, and the same on every device."""
    return torch.nan_to_num(logits_RV.float(), nan=NO_CHANCE, posinf=MOST, neginf=NO_CHANCE).clamp_(max=MOST)


def apply_repetition_penalty(logits_RV: Tensor, seen_RV: Tensor, penalty_R: Tensor) -> Tensor:
    """Divides positive and multiplies negative logits of seen ids (bool) by the row's penalty; 1 is off.

    Source: Keskar et al., 2019, arXiv:1909.05858.
    """
    penalty_R1 = penalty_R[:, None]
    penalized_RV = torch.where(logits_RV < 0, logits_RV * penalty_R1, logits_RV / penalty_R1)
    return torch.where(seen_RV, penalized_RV, logits_RV)


def apply_count_penalties(logits_RV: Tensor, counts_RV: Tensor, frequency_R: Tensor, presence_R: Tensor) -> Tensor:
    """Takes `frequency` for each time an id was generated (counts, integers), and `presence` once; 0 is off."""
    return logits_RV - (counts_RV * frequency_R[:, None] + (counts_RV > 0) * presence_R[:, None])


def apply_bias(logits_RV: Tensor, ids_RB: Tensor, biases_RB: Tensor) -> Tensor:
    """Adds biases (fp32) to ids (int64)."""
    return logits_RV.scatter_add(1, ids_RB, biases_RB)


def apply_suppression(logits_RV: Tensor, suppressed: Tensor) -> Tensor:
    """Makes ids impossible. suppressed: bool `[R, V]`, or `[V]` for all rows."""
    return logits_RV.masked_fill(suppressed, NO_CHANCE)


def apply_bad_words(logits_RV: Tensor, words_RWL: Tensor, recent_RH: Tensor) -> Tensor:
    """Makes the last token of each word impossible whose others are the newest ones. Both as in `SamplingState`, L = H + 1."""
    before_RWH, last_RW = words_RWL[..., :-1], words_RWL[..., -1]
    recent_R1H = recent_RH[:, None]
    is_there = (before_RWH == recent_R1H) | (before_RWH == ANYTHING) | ((before_RWH == SOMETHING) & (recent_R1H >= 0))
    return _rule_out(logits_RV, last_RW, is_there.all(-1))


def apply_min_tokens(logits_RV: Tensor, stop_ids_RS: Tensor, position_R: Tensor, min_tokens_R: Tensor) -> Tensor:
    """Makes stop ids (int64, padded with -1) impossible before `min_tokens` tokens. position_R: how many there are."""
    early_R1 = (position_R < min_tokens_R)[:, None]
    return _rule_out(logits_RV, stop_ids_RS, early_R1 & (stop_ids_RS >= 0))


def _rule_out(logits_RV: Tensor, ids: Tensor, when: Tensor) -> Tensor:
    """Makes those of each row's ids impossible for which `when` holds; the others may be anything below V."""
    bias = torch.zeros_like(ids, dtype=logits_RV.dtype).masked_fill(when, NO_CHANCE)
    return logits_RV.scatter_add(1, ids.clamp(min=0), bias)
