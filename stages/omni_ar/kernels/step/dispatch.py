"""The bookkeeping of a decode step: a few fields per row, one launch for each phase (`omni_ar.run.phases`).

Shape legend: R rows of the batch, W handoff fields, G code groups, D width.
"""

from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_ar.kernels.sampling.state import SamplingFlags
from omni_ar.kernels.step import reference
from omni_ar.kernels.step.state import RowState, StepBuffers


def prepare_decodes(state: RowState, rows_R: Tensor, block_size: int, out: StepBuffers, max_blocks: int) -> None:
    """Writes the inputs of decode rows, from device state alone: token, position, slot, number of keys to attend to.
    The kernel copies only the part of a row's table that its length needs; the rest is unchanged."""
    if not runs_kernel(rows_R):
        return reference.prepare_decodes(state, rows_R, block_size, out, max_blocks)
    from omni_ar.kernels.step import kernel

    return kernel.prepare_decodes(state, rows_R, block_size, out, max_blocks)


def accept_tokens(state: RowState, rows_R: Tensor, out_RW: Tensor) -> None:
    """Accepts sampled tokens as the rows' newest, evaluates stops, and stores both for the next step and the host.

    out_RW: the last column is the id; status and number of accepted ids are written before it. A row that ended earlier accepts
    none.
    """
    if not runs_kernel(rows_R):
        return reference.accept_tokens(state, rows_R, out_RW)
    from omni_ar.kernels.step import kernel

    return kernel.accept_tokens(state, rows_R, out_RW)


def post_update(state: RowState, rows_R: Tensor, accepted_RW: Tensor, advance_R: Tensor, flags: SamplingFlags) -> None:
    """Counts the tokens that this step put into the KV cache, and records the generated ones. The kernel ignores `flags` and reads
    each row's needs from its state.

    advance_R: number of tokens that the forward ran for each row.
    """
    if not runs_kernel(rows_R):
        return reference.post_update(state, rows_R, accepted_RW, advance_R, flags)
    from omni_ar.kernels.step import kernel

    return kernel.post_update(state, rows_R, accepted_RW, advance_R)


def frame_inputs(state: RowState, rows_R: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each row's newest token and the number of the frame that it begins, both int64 `[R]`."""
    if not runs_kernel(rows_R):
        return reference.frame_inputs(state, rows_R)
    from omni_ar.kernels.step import kernel

    return kernel.frame_inputs(state, rows_R)


def place_frames(
    state: RowState, rows_R: Tensor, codes_RG: Tensor, next_RD: Tensor, block_size: int, code_pages: Tensor
) -> None:
    """Writes frames into the page slots of their tokens (of the null block if the step gave the row no token), and
    their part of the next input into the state. code_pages: int64 `[blocks, block_size, G]`."""
    if not runs_kernel(rows_R):
        return reference.place_frames(state, rows_R, codes_RG, next_RD, block_size, code_pages)
    from omni_ar.kernels.step import kernel

    return kernel.place_frames(state, rows_R, codes_RG, next_RD, block_size, code_pages)


def end_frames(state: RowState, rows_R: Tensor, codes_RG: Tensor, code: int, end_groups: int) -> None:
    """Ends rows whose frame's first `end_groups` codes are all `code`. Writes the rows' status, with whether the last
    token has a frame, into the handoff slot. `accept_tokens` has already counted the step."""
    if not runs_kernel(rows_R):
        return reference.end_frames(state, rows_R, codes_RG, code, end_groups)
    from omni_ar.kernels.step import kernel

    return kernel.end_frames(state, rows_R, codes_RG, code, end_groups)
