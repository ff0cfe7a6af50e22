"""The bookkeeping of a step whose rows have drafts: one launch for each phase (`omni_ar.run.phases`).

Shape legend: R rows of the batch, J positions of a row (its newest token and K drafts), W handoff fields.
"""

from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_ar.kernels.sampling.state import SamplingFlags
from omni_ar.kernels.step import draft_reference
from omni_ar.kernels.step.state import RowState, StepBuffers


def prepare_drafts(
    state: RowState, rows_R: Tensor, positions: int, block_size: int, out: StepBuffers, max_blocks: int
) -> None:
    """Decides how many of the proposed drafts each row verifies, and writes the inputs of J positions a row, from device state
    alone: the newest token, then the drafts up to the first that is no id of the vocabulary. A position without a draft writes to
    the null block and attends to no key.

    positions: J. The kernel copies only the part of a row's table that its length needs.
    """
    if not runs_kernel(rows_R):
        return draft_reference.prepare_drafts(state, rows_R, positions, block_size, out, max_blocks)
    from omni_ar.kernels.step import draft_kernel

    return draft_kernel.prepare_drafts(state, rows_R, positions, block_size, out, max_blocks)


def accept_drafts(state: RowState, rows_R: Tensor, sampled_RJ: Tensor, out_RW: Tensor) -> None:
    """Accepts the ids of each row up to the first position whose id is not the draft after it, and evaluates stops and limits
    within them. Stores the result for the next step and the host, as `accept_tokens` does.

    sampled_RJ: the id that plain decoding gives each position after the drafts before it. out_RW: `HandoffFields`, then
    `DraftHandoffFields`.
    """
    if not runs_kernel(rows_R):
        return draft_reference.accept_drafts(state, rows_R, sampled_RJ, out_RW)
    from omni_ar.kernels.step import draft_kernel

    return draft_kernel.accept_drafts(state, rows_R, sampled_RJ, out_RW)


def record_drafts(
    state: RowState, rows_R: Tensor, accepted_RW: Tensor, positions: int, advance_R: Tensor, flags: SamplingFlags
) -> None:
    """Counts the tokens of this step that stay in the KV cache, and records the accepted ones for penalties and drafters. The
    kernel ignores `flags`.

    advance_R: number of tokens that the forward ran for each row, besides drafts.
    """
    if not runs_kernel(rows_R):
        return draft_reference.record_drafts(state, rows_R, accepted_RW, positions, advance_R, flags)
    from omni_ar.kernels.step import draft_kernel

    return draft_kernel.record_drafts(state, rows_R, accepted_RW, positions, advance_R)
