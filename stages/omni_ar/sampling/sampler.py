"""From logits to ids."""

from collections.abc import Sequence

import torch
from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_ar.kernels.sampling import fused_draw, fused_sample
from omni_ar.processors import NamedProcessor, ProcessedRows
from omni_ar.sampling import rules
from omni_ar.sampling.edits import StepEdits, apply_edits
from omni_ar.sampling.flags import SamplingFlags
from omni_ar.sampling.rng import gumbel
from omni_ar.sampling.state import NO_TOKEN, SamplingState
from omni_ar.sampling.warpers import warp

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
    """Draws one id per row, int64 `[R]`; -1 where nothing is possible.

    Greedy rows take the likeliest id that the rules leave, the others a draw from what the warpers leave of these.
    logits_RV: of any float dtype, taken as `rules.meant` takes them, left as they are. rows_R: int64, rows of `state`.
    position_R: int64, which draw of its request this is, and so how many tokens it has generated; a draw is keyed as in `gumbel`.
    processors: in the order they apply.
    """
    if edits is None and not flags.processors and runs_kernel(logits_RV):
        return fused_sample(logits_RV, state, rows_R, position_R, group=group, purpose=purpose)
    logits_RV = follow_rules(rules.meant(logits_RV), state, rows_R, position_R, flags)
    if edits is not None:
        logits_RV = apply_edits(logits_RV, edits)
    if flags.processors:
        logits_RV = rules.meant(_process(logits_RV, state, rows_R, position_R, flags, processors))
    ids_R = logits_RV.argmax(-1)
    if flags.any_random:
        temperature_R = state.temperature.index_select(0, rows_R)
        warped_RV = warp(
            logits_RV,
            temperature_R,
            state.top_k.index_select(0, rows_R) if flags.any_top_k else None,
            state.top_p.index_select(0, rows_R) if flags.any_top_p else None,
            state.min_p.index_select(0, rows_R) if flags.any_min_p else None,
        )
        drawn_R = _draw(warped_RV, state, rows_R, position_R, group, purpose)
        ids_R = torch.where(temperature_R == 0, ids_R, drawn_R)
    return ids_R.masked_fill(logits_RV.amax(-1) == rules.NO_CHANCE, _NONE_POSSIBLE)


def draw(
    logits_RV: Tensor,
    state: SamplingState,
    rows_R: Tensor,
    position_R: Tensor,
    group: int,
    flags: SamplingFlags,
) -> Tensor:
    """Draws one code of a frame after the first per row, int64 `[R]`, by the rows' `code_temperature`, `code_top_k`, `code_top_p`
    and seeds. No rule applies to it.

    logits_RV: of any float type. position_R: int64, which frame of its request this is. group: code group, which keys the draw too.
    """
    if runs_kernel(logits_RV):
        return fused_draw(logits_RV, state, rows_R, position_R, group)
    logits_RV = rules.meant(logits_RV)
    ids_R = logits_RV.argmax(-1)
    if not flags.any_code_random:
        return ids_R
    temperature_R = state.code_temperature.index_select(0, rows_R)
    warped_RV = warp(
        logits_RV,
        temperature_R,
        state.code_top_k.index_select(0, rows_R) if flags.any_code_top_k else None,
        state.code_top_p.index_select(0, rows_R) if flags.any_code_top_p else None,
    )
    drawn_R = _draw(warped_RV, state, rows_R, position_R, group, 0)
    return torch.where(temperature_R == 0, ids_R, drawn_R)


def _draw(
    warped_RV: Tensor, state: SamplingState, rows_R: Tensor, position_R: Tensor, group: int, purpose: int
) -> Tensor:
    seed_R, sample_index_R = state.seed.index_select(0, rows_R), state.sample_index.index_select(0, rows_R)
    noise_RV = gumbel(seed_R, sample_index_R, position_R, group, purpose, warped_RV.shape[1])
    return (warped_RV + noise_RV).argmax(-1)


def follow_rules(
    logits_RV: Tensor, state: SamplingState, rows_R: Tensor, position_R: Tensor, flags: SamplingFlags
) -> Tensor:
    """Logits after the rules of their rows: all that comes before edits, processors and the draw. As in `sample`."""

    def of(values: Tensor) -> Tensor:
        return values.index_select(0, rows_R)

    vocab = logits_RV.shape[1]
    if flags.any_repetition:
        logits_RV = rules.apply_repetition_penalty(logits_RV, of(state.seen)[:, :vocab], of(state.repetition))
    if flags.any_penalty:
        counts_RV = of(state.counts)[:, :vocab]
        logits_RV = rules.apply_count_penalties(logits_RV, counts_RV, of(state.frequency), of(state.presence))
    if flags.any_bias:
        logits_RV = rules.apply_bias(logits_RV, of(state.bias_ids), of(state.biases))
    if flags.any_forbidden:
        logits_RV = rules.apply_suppression(logits_RV, of(state.forbidden))
    if flags.any_bad_words:
        logits_RV = rules.apply_bad_words(logits_RV, of(state.bad_words), of(state.recent))
    if flags.any_min_tokens:
        logits_RV = rules.apply_min_tokens(logits_RV, of(state.stop_ids), position_R, of(state.min_tokens))
    return logits_RV


def _process(
    logits_RV: Tensor,
    state: SamplingState,
    rows_R: Tensor,
    position_R: Tensor,
    flags: SamplingFlags,
    processors: Sequence[NamedProcessor],
) -> Tensor:
    # `recent` has the prompt's tokens too, and a processor is promised generated ones.
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
