"""A step's small phases in plain torch. Shape legend: R rows, K ids of a row, W handoff fields, G code groups, D
width."""

import torch
from torch import Tensor

from omni_ar.kernels.sampling.state import Need, SamplingFlags, SamplingState
from omni_ar.kernels.step.handoff import IDS, NUM_TOKENS, STATUS
from omni_ar.kernels.step.state import RowFields, RowState, StepBuffers
from omni_ar.kernels.step.status import RowStatus


def prepare_decodes(state: RowState, rows_R: Tensor, block_size: int, out: StepBuffers, max_blocks: int) -> None:
    count = rows_R.shape[0]
    row = _fields(state, rows_R)
    table = state.block_table.index_select(0, rows_R)
    block = table.gather(1, (row.length // block_size)[:, None]).squeeze(1)
    if state.next_codes.shape[1]:
        torch.index_select(state.next_codes, 0, rows_R, out=out.codes_ND[:count])
    out.ids_N[:count].copy_(row.last)
    # A stopped row writes to the null block's slots, and attends to its own keys.
    torch.add(row.length, row.active, out=out.lengths_N[:count])
    torch.mul(block * block_size + row.length % block_size, row.active, out=out.slots_T[:count])
    out.table_NM[:count, :max_blocks].copy_(table[:, :max_blocks])
    out.positions_PT[:, :count].copy_(row.length + row.delta)


def accept_tokens(state: RowState, rows_R: Tensor, out_RW: Tensor) -> None:
    fields_RC = state.fields.index_select(0, rows_R)
    row = RowFields(*fields_RC.unbind(1))
    row.counted.copy_(row.active)
    status_R, count_R, ids_R = out_RW[:, STATUS], out_RW[:, NUM_TOKENS], out_RW[:, IDS]
    stop_RS = state.sampling.stop_ids.index_select(0, rows_R)
    count_R.copy_(row.active)
    row.last.copy_(ids_R)
    row.outputs.add_(count_R)
    # Stop ids are padded with -1, so a row without a possible id stops too.
    stopped_R = (stop_RS == row.last[:, None]).any(1)
    status_R.copy_(torch.where(stopped_R, RowStatus.STOPPED, (row.outputs >= row.limit) * RowStatus.FULL))
    row.active.mul_(status_R == RowStatus.RUNNING)
    row.last.clamp_(min=0)
    state.fields.index_copy_(0, rows_R, fields_RC)
    handoff = state.handoff.device
    slot = state.counter % handoff.shape[0]
    handoff[:, : rows_R.shape[0]].index_copy_(0, slot, out_RW[None])
    state.counter.add_(1)


def post_update(state: RowState, rows_R: Tensor, accepted_RW: Tensor, advance_R: Tensor, flags: SamplingFlags) -> None:
    count_R = accepted_RW[:, NUM_TOKENS]
    state.columns.length.index_add_(0, rows_R, advance_R * count_R)
    observe(state.sampling, rows_R, accepted_RW[:, IDS:], count_R, flags)


def observe(state: SamplingState, rows_R: Tensor, ids_RK: Tensor, count_R: Tensor, flags: SamplingFlags) -> None:
    """Records the first `count_R` of each row's K ids as generated; a row with count 0 is unchanged. A phase.

    rows_R: int64, each row once. ids_RK, count_R: int64. flags: at least those of the rows.
    """
    needs = flags.needs
    if not needs & (Need.REPETITION | Need.COUNTS | Need.RECALLS):
        return
    ids_RK = ids_RK.contiguous()
    if needs & (Need.REPETITION | Need.COUNTS):
        index_K = torch.arange(ids_RK.shape[1], device=ids_RK.device)
        width = state.seen.shape[1]
        # Ids that do not count become -1 and go to the last column, so that all rows and ids are processed alike.
        counted_RK = torch.where(index_K < count_R[:, None], ids_RK, -1).remainder(width)
        at = torch.add(counted_RK, rows_R[:, None], alpha=width).view(-1)
        if needs & Need.REPETITION:
            state.seen.view(-1).index_fill_(0, at, True)
        if needs & Need.COUNTS:
            state.counts.view(-1).index_add_(0, at, torch.ones_like(at, dtype=torch.int32))
    if needs & Need.RECALLS:
        recent_RL = state.recent.index_select(0, rows_R)
        index_L = torch.arange(recent_RL.shape[1], device=ids_RK.device)
        both_RX = torch.cat([recent_RL, ids_RK], 1)
        state.recent.index_copy_(0, rows_R, both_RX.gather(1, index_L + count_R[:, None]))


def frame_inputs(state: RowState, rows_R: Tensor) -> tuple[Tensor, Tensor]:
    row = _fields(state, rows_R)
    return row.last, row.outputs - 1


def place_frames(
    state: RowState, rows_R: Tensor, codes_RG: Tensor, next_RD: Tensor, block_size: int, code_pages: Tensor
) -> None:
    row = _fields(state, rows_R)
    block_R = state.block_table.index_select(0, rows_R).gather(1, (row.length // block_size)[:, None]).squeeze(1)
    slots_R = (block_R * block_size + row.length % block_size) * row.counted
    code_pages.flatten(0, 1).index_copy_(0, slots_R, codes_RG)
    state.next_codes.index_copy_(0, rows_R, next_RD)


def end_frames(state: RowState, rows_R: Tensor, codes_RG: Tensor, code: int, end_groups: int) -> None:
    row = _fields(state, rows_R)
    reported_RR = state.handoff.device[:, : rows_R.shape[0], STATUS]
    slot = (state.counter - 1) % reported_RR.shape[0]
    status_R = reported_RR.index_select(0, slot)[0]
    counted_R = row.counted != 0
    early_R = row.outputs - 1 < state.sampling.min_tokens.index_select(0, rows_R)
    endless_R = state.sampling.needs.index_select(0, rows_R) & Need.ENDLESS != 0
    is_end_RG = codes_RG == code
    may_end_R = counted_R & ~early_R & ~endless_R & (status_R != RowStatus.STOPPED)
    ends_R = may_end_R & is_end_RG[:, :end_groups].all(1)
    state.columns.active.index_copy_(0, rows_R, row.active * ~ends_R)
    ended_R = torch.where(is_end_RG.all(1), RowStatus.STOPPED, RowStatus.STOPPED_WITH_FRAME)
    reported_R = torch.where(
        ends_R, ended_R, torch.where(status_R == RowStatus.FULL, RowStatus.FULL_WITH_FRAME, status_R)
    )
    reported_RR.index_copy_(0, slot, torch.where(counted_R, reported_R, status_R)[None])


def _fields(state: RowState, rows_R: Tensor) -> RowFields[Tensor]:
    return RowFields(*state.fields.index_select(0, rows_R).unbind(1))
