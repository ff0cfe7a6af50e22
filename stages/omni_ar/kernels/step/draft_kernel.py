"""Kernel launches of the phases of a step with drafts."""

import torch
from torch import Tensor

from omni_ar.kernels.step.draft_accept import accept_draft_rows, record_row
from omni_ar.kernels.step.draft_prepare import prepare_positions
from omni_ar.kernels.step.draft_reference import drafts_of
from omni_ar.kernels.step.state import RowState, StepBuffers

# Rows per iteration, where one program handles all rows, and where each counts those that are active.
_ROWS, _COUNTED = 32, 128


def prepare_drafts(
    state: RowState, rows_R: Tensor, positions: int, block_size: int, out: StepBuffers, max_blocks: int
) -> None:
    drafts = drafts_of(state)
    prepare_positions[(rows_R.shape[0], positions)](
        rows_R,
        state.fields,
        state.block_table,
        drafts.drafts,
        drafts.fields,
        drafts.fields if drafts.costs is None else drafts.costs,
        out.ids_N,
        out.lengths_N,
        out.slots_T,
        out.positions_PT,
        out.positions_PT.stride(0),
        out.table_NM,
        max_blocks,
        state.sampling.forbidden.shape[1],
        POSITIONS=positions,
        DRAFTS=drafts.drafts.shape[1],
        ADAPTIVE=drafts.adaptive,
        HAS_COSTS=drafts.costs is not None,
        AXES=out.positions_PT.shape[0],
        TABLE=state.block_table.shape[1],
        BLOCK_SIZE=block_size,
        BLOCK_R=_COUNTED,
        num_warps=4,
    )


def accept_drafts(state: RowState, rows_R: Tensor, sampled_RJ: Tensor, out_RW: Tensor) -> None:
    drafts, (rows, positions), handoff = drafts_of(state), sampled_RJ.shape, state.handoff.device
    width = out_RW.shape[1]
    assert handoff.stride(1) == out_RW.stride(0) == width
    accept_draft_rows[(1,)](
        rows_R,
        state.fields,
        drafts.fields,
        drafts.drafts,
        drafts.fields if drafts.costs is None else drafts.costs,
        state.sampling.stop_ids,
        sampled_RJ,
        out_RW,
        handoff,
        handoff.stride(0),
        state.counter,
        rows,
        RING=handoff.shape[0],
        POSITIONS=positions,
        DRAFTS=drafts.drafts.shape[1],
        WIDTH=width,
        ADAPTIVE=drafts.adaptive,
        HAS_COSTS=drafts.costs is not None,
        RAN=drafts.always_runs or positions > 1,
        BLOCK_R=min(1 << (max(rows, 1) - 1).bit_length(), _ROWS),
        num_warps=4,
    )


def record_drafts(state: RowState, rows_R: Tensor, accepted_RW: Tensor, positions: int, advance_R: Tensor) -> None:
    sampling, text = state.sampling, drafts_of(state).text
    # One warp, whose threads run in step: it shifts `recent` in place.
    record_row[(rows_R.shape[0],)](
        rows_R,
        state.fields,
        accepted_RW,
        advance_R,
        sampling.needs,
        sampling.seen.view(torch.uint8),
        sampling.counts,
        sampling.recent,
        text,
        POSITIONS=positions,
        WIDTH=accepted_RW.stride(0),
        SEEN=sampling.seen.shape[1],
        TEXT=text.shape[1],
        num_warps=1,
    )
