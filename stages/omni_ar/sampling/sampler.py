"""From logits to ids."""

import torch
from torch import Tensor

from omni_ar.sampling.processors import apply_repetition_penalty, apply_suppression, apply_temperature, keep_top
from omni_ar.sampling.rng import gumbel
from omni_ar.sampling.state import SamplingFlags, SamplingState


def sample(
    logits_RV: Tensor,
    state: SamplingState,
    rows_R: Tensor,
    position_R: Tensor,
    flags: SamplingFlags,
    group: int = 0,
    purpose: int = 0,
) -> Tensor:
    """Draws one id per row, int64 `[R]`.

    Greedy rows take the argmax of their penalized and suppressed logits, the others a draw from the softmax of their
    warped ones. logits_RV: fp32, left as they are. rows_R: int64, which rows of `state` these are. position_R: int64,
    which draw of its request this is; a draw is keyed as in `gumbel`.
    """
    logits_RV = _constrain(logits_RV, state, rows_R, flags)
    greedy_R = logits_RV.argmax(-1)
    if not flags.any_random:
        return greedy_R
    temperature_R = state.temperature.index_select(0, rows_R)
    warped_RV = keep_top(
        apply_temperature(logits_RV, temperature_R),
        state.top_k.index_select(0, rows_R) if flags.any_top_k else None,
        state.top_p.index_select(0, rows_R) if flags.any_top_p else None,
    )
    seed_R, sample_index_R = state.seed.index_select(0, rows_R), state.sample_index.index_select(0, rows_R)
    noise_RV = gumbel(seed_R, sample_index_R, position_R, group, purpose, logits_RV.shape[1])
    return torch.where(temperature_R == 0, greedy_R, (warped_RV + noise_RV).argmax(-1))


def _constrain(logits_RV: Tensor, state: SamplingState, rows_R: Tensor, flags: SamplingFlags) -> Tensor:
    if flags.any_penalty:
        seen_RV, penalty_R = state.seen.index_select(0, rows_R), state.penalty.index_select(0, rows_R)
        logits_RV = apply_repetition_penalty(logits_RV, seen_RV, penalty_R)
    if flags.any_suppressed:
        logits_RV = apply_suppression(logits_RV, state.suppressed.index_select(0, rows_R))
    return logits_RV
