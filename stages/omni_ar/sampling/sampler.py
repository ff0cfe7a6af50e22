"""Draws ids from logits, and log-probabilities."""

from collections.abc import Sequence

import torch
from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_ar.kernels.sampling import fused_draw, fused_sample
from omni_ar.kernels.sampling.state import NO_TOKEN, Need, SamplingFlags, SamplingState
from omni_ar.processors import NamedProcessor, ProcessedRows
from omni_ar.sampling.drafted import position_edits, position_state, spread
from omni_ar.sampling.edits import StepEdits, apply_edits
from omni_ar.sampling.penalties import MASKED, apply_penalties, sanitize
from omni_ar.sampling.rng import gumbel
from omni_ar.sampling.warpers import warp_codes, warp_tokens

_NONE_POSSIBLE = -1


def sample(
    logits_RV: Tensor,
    state: SamplingState,
    rows_R: Tensor,
    position_R: Tensor,
    flags: SamplingFlags,
    edits: StepEdits | None = None,
    processors: Sequence[NamedProcessor] = (),
    group: int = 0,
    purpose: int = 0,
) -> Tensor:
    """Draws one id per row, int64 `[R]`; -1 where no id is possible.

    Greedy rows take the most likely id that is not masked; the others draw from the ids that the warpers keep.
    logits_RV: of any float dtype, not modified. rows_R: int64, rows of `state`. position_R: int64, the number of tokens
    that the request has generated; a draw is keyed as in `gumbel`. processors: in order of application.
    """
    if edits is None and not flags.processors and runs_kernel(logits_RV):
        return fused_sample(logits_RV, state, rows_R, position_R, group=group, purpose=purpose)
    logits_RV = apply_penalties(sanitize(logits_RV), state, rows_R, position_R, flags.needs)
    if edits is not None:
        logits_RV = apply_edits(logits_RV, edits)
    if flags.processors:
        logits_RV = sanitize(_process(logits_RV, state, rows_R, position_R, flags, processors))
    ids_R = logits_RV.argmax(-1)
    if flags.needs & Need.RANDOM:
        warped_RV = warp_tokens(logits_RV, state, rows_R, flags.needs)
        drawn_R = _draw(warped_RV, state, rows_R, position_R, group, purpose)
        ids_R = torch.where(state.temperature.index_select(0, rows_R) == 0, ids_R, drawn_R)
    return ids_R.masked_fill(logits_RV.amax(-1) == MASKED, _NONE_POSSIBLE)


def sample_drafted(
    logits_XV: Tensor,
    state: SamplingState,
    rows_R: Tensor,
    position_R: Tensor,
    drafts_RK: Tensor,
    flags: SamplingFlags,
    edits: StepEdits | None = None,
    processors: Sequence[NamedProcessor] = (),
) -> Tensor:
    """Draws an id at each of the K + 1 positions of each row, int64 `[X]`, as `sample` would if the drafts before the position were
    the row's newest tokens. edits: of the rows' first positions."""
    positions = 1 + drafts_RK.shape[1]
    rows_X, index_J = spread(rows_R, positions), torch.arange(positions, device=rows_R.device)
    position_X = (position_R[:, None] + index_J).flatten()
    if edits is not None:
        edits = position_edits(edits, positions)
    drafted = position_state(state, rows_R, drafts_RK, flags.needs)
    return sample(
        logits_XV, drafted, torch.arange(rows_X.shape[0], device=rows_R.device), position_X, flags, edits, processors
    )


def draw(
    logits_RV: Tensor,
    state: SamplingState,
    rows_R: Tensor,
    position_R: Tensor,
    group: int,
    flags: SamplingFlags,
) -> Tensor:
    """Draws one code per row, int64 `[R]`, for a group of the frame after the first, by the rows' `code_*` parameters and seeds.
    Penalties and masks do not apply. logits_RV: of any float type. position_R: int64, index of the frame in its request. group:
    also keys the draw."""
    if runs_kernel(logits_RV):
        return fused_draw(logits_RV, state, rows_R, position_R, group)
    logits_RV = sanitize(logits_RV)
    ids_R = logits_RV.argmax(-1)
    if not flags.needs & Need.CODE_RANDOM:
        return ids_R
    drawn_R = _draw(warp_codes(logits_RV, state, rows_R, flags.needs), state, rows_R, position_R, group, 0)
    return torch.where(state.code_temperature.index_select(0, rows_R) == 0, ids_R, drawn_R)


def _draw(
    warped_RV: Tensor, state: SamplingState, rows_R: Tensor, position_R: Tensor, group: int, purpose: int
) -> Tensor:
    seed_R, sample_index_R = state.seed.index_select(0, rows_R), state.sample_index.index_select(0, rows_R)
    noise_RV = gumbel(seed_R, sample_index_R, position_R, group, purpose, warped_RV.shape[1])
    return (warped_RV + noise_RV).argmax(-1)


def _process(
    logits_RV: Tensor,
    state: SamplingState,
    rows_R: Tensor,
    position_R: Tensor,
    flags: SamplingFlags,
    processors: Sequence[NamedProcessor],
) -> Tensor:
    # `recent` includes prompt tokens; processors receive generated ones only.
    newest_R = state.recent[:, -1].index_select(0, rows_R)
    newest_R = torch.where(position_R > 0, newest_R, NO_TOKEN)
    counts_NV = state.counts[:, : logits_RV.shape[1]]
    for processor in processors:
        if processor.name in flags.processors:
            params_RW = state.params[processor.name].index_select(0, rows_R)
            rows = ProcessedRows(params_RW, position_R, newest_R, rows_R, counts_NV)
            uses_R1 = state.uses[processor.name].index_select(0, rows_R)[:, None]
            logits_RV = torch.where(uses_R1, processor.apply(logits_RV, rows), logits_RV)
    return logits_RV


def top_logprobs(logits_RV: Tensor, ids_R: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each row's id (int64) and then the k most likely, descending: ids int64 `[R, 1 + k]`, log-probabilities fp32 `[R, 1 +
    k]`, ranks of the rows' ids int64 `[R]`: the number of more likely ids, plus 1. logits_RV: fp32, the model's logits."""
    logprobs_RV = logits_RV.log_softmax(-1)
    top = logprobs_RV.topk(k, dim=-1)
    own_R1 = logprobs_RV.gather(1, ids_R[:, None])
    ranks_R = (logprobs_RV > own_R1).sum(-1) + 1
    return torch.cat([ids_R[:, None], top.indices], 1), torch.cat([own_R1, top.values], 1), ranks_R
