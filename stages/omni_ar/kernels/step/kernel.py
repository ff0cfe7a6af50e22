"""Kernel launches of a step's small phases."""

import torch
import triton
from torch import Tensor

from omni_ar.kernels.step.accept import accept_rows, update_row
from omni_ar.kernels.step.frames import end_row, place_frame, read_rows
from omni_ar.kernels.step.prepare import prepare_row
from omni_ar.kernels.step.state import RowState, StepBuffers

# Rows per iteration, where one program handles all rows.
_ROWS = 64


def prepare_decodes(state: RowState, rows_R: Tensor, block_size: int, out: StepBuffers, max_blocks: int) -> None:
    width = state.next_codes.shape[1]
    prepare_row[(rows_R.shape[0],)](
        rows_R,
        state.fields,
        state.block_table,
        state.next_codes,
        out.ids_N,
        out.lengths_N,
        out.slots_T,
        out.positions_PT,
        out.positions_PT.stride(0),
        out.table_NM,
        out.codes_ND,
        max_blocks,
        AXES=out.positions_PT.shape[0],
        TABLE=state.block_table.shape[1],
        BLOCK_SIZE=block_size,
        WIDTH=width,
        BLOCK_D=_padded(width),
        num_warps=4,
    )


def accept_tokens(state: RowState, rows_R: Tensor, out_RW: Tensor) -> None:
    rows, handoff = rows_R.shape[0], state.handoff.device
    accept_rows[(1,)](
        rows_R,
        state.fields,
        state.sampling.stop_ids,
        out_RW,
        out_RW.stride(0),
        handoff,
        handoff.stride(0),
        handoff.stride(1),
        state.counter,
        rows,
        RING=handoff.shape[0],
        BLOCK_R=min(_padded(rows), _ROWS),
        num_warps=4,
    )


def post_update(state: RowState, rows_R: Tensor, accepted_RW: Tensor, advance_R: Tensor) -> None:
    sampling = state.sampling
    # One warp, whose threads run in step: it shifts `recent` in place.
    update_row[(rows_R.shape[0],)](
        rows_R,
        state.fields,
        accepted_RW,
        accepted_RW.stride(0),
        advance_R,
        sampling.needs,
        sampling.seen.view(torch.uint8),
        sampling.counts,
        sampling.recent,
        SEEN=sampling.seen.shape[1],
        num_warps=1,
    )


def frame_inputs(state: RowState, rows_R: Tensor) -> tuple[Tensor, Tensor]:
    rows = rows_R.shape[0]
    last_R, position_R = torch.empty_like(rows_R), torch.empty_like(rows_R)
    read_rows[(triton.cdiv(rows, _ROWS),)](rows_R, state.fields, last_R, position_R, rows, BLOCK_R=_ROWS, num_warps=1)
    return last_R, position_R


def place_frames(
    state: RowState, rows_R: Tensor, codes_RG: Tensor, next_RD: Tensor, block_size: int, code_pages: Tensor
) -> None:
    groups, width = codes_RG.shape[1], next_RD.shape[1]
    place_frame[(rows_R.shape[0],)](
        rows_R,
        state.fields,
        state.block_table,
        codes_RG,
        codes_RG.stride(0),
        codes_RG.stride(1),
        next_RD,
        next_RD.stride(0),
        code_pages,
        state.next_codes,
        TABLE=state.block_table.shape[1],
        BLOCK_SIZE=block_size,
        GROUPS=groups,
        BLOCK_G=_padded(groups),
        WIDTH=width,
        BLOCK_D=_padded(width),
        num_warps=4,
    )


def end_frames(state: RowState, rows_R: Tensor, codes_RG: Tensor, code: int, end_groups: int) -> None:
    groups, sampling, handoff = codes_RG.shape[1], state.sampling, state.handoff.device
    end_row[(rows_R.shape[0],)](
        rows_R,
        state.fields,
        sampling.needs,
        sampling.min_tokens,
        codes_RG,
        codes_RG.stride(0),
        codes_RG.stride(1),
        handoff,
        handoff.stride(0),
        handoff.stride(1),
        state.counter,
        code,
        RING=handoff.shape[0],
        END_GROUPS=end_groups,
        GROUPS=groups,
        BLOCK_G=_padded(groups),
        num_warps=1,
    )


def _padded(size: int) -> int:
    return 1 << (max(size, 1) - 1).bit_length()
