"""The phases of a step with drafts in plain torch. Shape legend: R rows, J positions of a row (its newest token and K drafts), W
handoff fields, S stop ids."""

import torch
from torch import Tensor

from omni_ar.kernels.sampling.state import SamplingFlags
from omni_ar.kernels.step.draft_state import RATE_ONE, RATE_SHIFT, DraftFields, DraftState, N, worthwhile_drafts
from omni_ar.kernels.step.handoff import GAIN, IDS, NUM_TOKENS, STATUS, VERIFIED
from omni_ar.kernels.step.reference import observe
from omni_ar.kernels.step.state import RowFields, RowState, StepBuffers
from omni_ar.kernels.step.status import RowStatus


def prepare_drafts(
    state: RowState, rows_R: Tensor, positions: int, block_size: int, out: StepBuffers, max_blocks: int
) -> None:
    drafts = drafts_of(state)
    count = rows_R.shape[0] * positions
    row = RowFields(*state.fields.index_select(0, rows_R).unbind(1))
    draft = DraftFields(*drafts.fields.index_select(0, rows_R).unbind(1))
    remaining_R = torch.minimum(row.limit - row.outputs, torch.full_like(row.limit, positions)) - 1
    drafts_RK = drafts.drafts.index_select(0, rows_R)[:, : positions - 1]
    # A plugin's drafter may give ids that the vocabulary lacks: no embedding of theirs may be read.
    is_id_RK = (drafts_RK >= 0) & (drafts_RK < state.sampling.forbidden.shape[1])
    proposed_R = torch.minimum(draft.proposed, is_id_RK.long().cumprod(1).sum(1))
    wanted_R, _ = _worthwhile(draft, drafts, row.active)
    offered_R = torch.minimum(torch.minimum(proposed_R, wanted_R), remaining_R).clamp(min=0) * row.active
    drafts.columns.offered.index_copy_(0, rows_R, offered_R)
    index_J = torch.arange(positions, device=rows_R.device)
    drafted_RJ = (index_J > 0) & (index_J <= offered_R[:, None])
    first_RJ = (index_J == 0).expand_as(drafted_RJ)
    live_RJ = (first_RJ & (row.active != 0)[:, None]) | drafted_RJ
    # The positions without a draft are all alike. They repeat the newest token if tokens choose experts, since equal tokens read no
    # further ones; else they attend to no key.
    used_RJ = first_RJ | drafted_RJ | (drafts.costs is not None)
    at_RJ = row.length[:, None] + index_J * drafted_RJ
    ids_RJ = torch.cat([row.last[:, None], drafts_RK], 1)
    table_RM = state.block_table.index_select(0, rows_R)
    last = table_RM.shape[1] - 1
    # A finished row may be as long as its table; it writes to the null block.
    block_RJ = table_RM.gather(1, (at_RJ // block_size).clamp(max=last)).where(at_RJ // block_size <= last, 0)
    ids_RJ = ids_RJ.where(first_RJ | drafted_RJ, row.last[:, None])
    out.ids_N[:count].copy_(ids_RJ.where(used_RJ, 0).flatten())
    out.lengths_N[:count].copy_((at_RJ + row.active[:, None]).where(used_RJ, 0).flatten())
    out.slots_T[:count].copy_((block_RJ * block_size + at_RJ % block_size).where(live_RJ, 0).flatten())
    out.table_NM[:count, :max_blocks].copy_(table_RM[:, None, :max_blocks].expand(-1, positions, -1).flatten(0, 1))
    out.positions_PT[:, :count].copy_((at_RJ + row.delta[:, None]).where(used_RJ, 0).flatten())


def accept_drafts(state: RowState, rows_R: Tensor, sampled_RJ: Tensor, out_RW: Tensor) -> None:
    drafts = drafts_of(state)
    positions, most = sampled_RJ.shape[1], min(sampled_RJ.shape[1], drafts.drafts.shape[1])
    active_R = state.columns.active.index_select(0, rows_R)
    fields_RC, draft_RC = state.fields.index_select(0, rows_R), drafts.fields.index_select(0, rows_R)
    row, draft = RowFields(*fields_RC.unbind(1)), DraftFields(*draft_RC.unbind(1))
    # The first draft is compared with the token in any case, so that the rate of a row whose drafts are not verified can rise.
    tried_R = torch.maximum(draft.offered, draft.proposed.clamp(max=1)) * row.active
    index_K = torch.arange(most, device=rows_R.device)
    hit_RK = (sampled_RJ[:, :most] == drafts.drafts.index_select(0, rows_R)[:, :most]) & (index_K < tried_R[:, None])
    matched_R = hit_RK.cumprod(1).sum(1)
    stop_RS = state.sampling.stop_ids.index_select(0, rows_R)
    offered_R = torch.minimum(matched_R, draft.offered) + 1
    count_R = _accepted(row.outputs, row.limit, stop_RS, sampled_RJ, offered_R) * row.active
    row.counted.copy_(row.active)
    row.last.copy_(sampled_RJ.gather(1, (count_R[:, None] - 1).clamp(min=0)).squeeze(1))
    row.outputs.add_(count_R)
    # Stop ids are padded with -1, so a row without a possible id stops too.
    stopped_R = (stop_RS == row.last[:, None]).any(1)
    status_R = torch.where(stopped_R, RowStatus.STOPPED, (row.outputs >= row.limit) * RowStatus.FULL)
    row.active.mul_(status_R == RowStatus.RUNNING)
    row.last.clamp_(min=0)
    rate_R = draft.rate.clone()
    for index in range(most):
        is_tried_R = (index < tried_R) & (index <= matched_R)
        hit_R = (index < matched_R) * RATE_ONE
        rate_R = torch.where(is_tried_R, moved_rate(rate_R, hit_R), rate_R)
    out_RW[:, STATUS].copy_(status_R)
    out_RW[:, NUM_TOKENS].copy_(count_R)
    out_RW[:, IDS : IDS + positions].copy_(sampled_RJ)
    out_RW[:, VERIFIED].copy_(draft.offered)
    draft.rate.copy_(rate_R)
    if drafts.always_runs or positions > 1:
        draft.found.copy_(draft.proposed.clamp(max=1))
    _, gain_R = _worthwhile(draft, drafts, active_R)
    # A drafter that found none will hardly have any in the next step.
    out_RW[:, GAIN].copy_(gain_R * (draft.found > 0) if drafts.adaptive else gain_R)
    draft.proposed.zero_()
    draft.offered.zero_()
    state.fields.index_copy_(0, rows_R, fields_RC)
    drafts.fields.index_copy_(0, rows_R, draft_RC)
    handoff = state.handoff.device
    slot = state.counter % handoff.shape[0]
    handoff[:, : rows_R.shape[0]].index_copy_(0, slot, out_RW[None])
    state.counter.add_(1)


def record_drafts(
    state: RowState, rows_R: Tensor, accepted_RW: Tensor, positions: int, advance_R: Tensor, flags: SamplingFlags
) -> None:
    count_R, ids_RJ = accepted_RW[:, NUM_TOKENS], accepted_RW[:, IDS : IDS + positions]
    row = RowFields(*state.fields.index_select(0, rows_R).unbind(1))
    record_text(drafts_of(state), rows_R, row.length + advance_R, count_R, ids_RJ)
    state.columns.length.index_add_(0, rows_R, (advance_R + count_R - 1) * (count_R > 0))
    observe(state.sampling, rows_R, ids_RJ, count_R, flags)


def record_text(drafts: DraftState, rows_R: Tensor, start_R: Tensor, count_R: Tensor, ids_RJ: Tensor) -> None:
    """Writes the first `count_R` ids of each row into its text, from `start_R` on."""
    text_NL = drafts.text
    width, index_J = text_NL.shape[1], torch.arange(ids_RJ.shape[1], device=rows_R.device)
    at_RJ = start_R[:, None] + index_J
    at_RJ = at_RJ.where(index_J < count_R[:, None], width - 1).clamp(max=width - 1)
    text_NL.view(-1).index_copy_(0, (rows_R[:, None] * width + at_RJ).flatten(), ids_RJ.flatten().to(text_NL.dtype))


def drafts_of(state: RowState) -> DraftState:
    assert state.drafts is not None, "the stage has a drafter"
    return state.drafts


def moved_rate(rate: N, towards: N) -> N:
    return (rate * ((1 << RATE_SHIFT) - 1) + towards) >> RATE_SHIFT


def _worthwhile(draft: DraftFields[Tensor], drafts: DraftState, active_R: Tensor) -> tuple[Tensor, Tensor]:
    """The number of drafts that each row verifies, and their gain. active_R: of the rows at the start of the step."""
    if not drafts.adaptive:
        return draft.cap, draft.cap * RATE_ONE
    cost = (
        active_R.new_zeros(1) if drafts.costs is None else drafts.costs.index_select(0, active_R.sum(0, keepdim=True))
    )
    return worthwhile_drafts(draft.rate, draft.cap, drafts.drafts.shape[1], cost)


def _accepted(outputs_R: Tensor, limit_R: Tensor, stop_RS: Tensor, ids_RJ: Tensor, offered_R: Tensor) -> Tensor:
    """Number of accepted ids of each row: up to the first stop id, the last id within the row's limit, or `offered_R`."""
    count_J = torch.arange(1, ids_RJ.shape[1] + 1, device=ids_RJ.device)
    over_RJ = (ids_RJ[:, :, None] == stop_RS[:, None]).any(2) | (outputs_R[:, None] + count_J >= limit_R[:, None])
    over_RJ = over_RJ | (count_J >= offered_R[:, None])
    return torch.where(over_RJ, count_J, ids_RJ.shape[1]).amin(1)
