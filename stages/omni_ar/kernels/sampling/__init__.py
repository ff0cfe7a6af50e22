"""Sampling in one launch for a narrow vocabulary, and two for a wide one.

Kernels read the work of a row from its state (`SamplingState.needs`), so one launch, captured or not, serves any rows.
The reference is `omni_ar.sampling`, which calls these functions where kernels run.

Shape legend: R rows of the batch, N rows of the state, V vocabulary.
"""

import torch
from torch import Tensor

from omni_ar.kernels.sampling.state import SamplingState

__all__ = ["fused_draw", "fused_sample"]


def fused_sample(
    logits_RV: Tensor,
    state: SamplingState,
    rows_R: Tensor,
    position: Tensor,
    *,
    by_row: bool = False,
    group: int = 0,
    purpose: int = 0,
    out_R: Tensor | None = None,
    drafts_NK: Tensor | None = None,
) -> Tensor:
    """`omni_ar.sampling.sample` without edits and processors, int64 `[R]`; -1 where no id is possible.

    logits_RV: of any float type, each row contiguous. position: int64 `[R]`, or `[N]` if `by_row`. out_R: the output.
    `top_p` keeps all values that equal the last one it keeps. A draw may differ from the reference where two ids are
    within rounding of each other. drafts_NK: int64, contiguous; then it is `omni_ar.sampling.sample_drafted`, and logits and output
    have K + 1 entries for each row.
    """
    from omni_ar.kernels.sampling import kernel  # imports triton

    if out_R is None:
        out_R = torch.empty(logits_RV.shape[0], dtype=torch.int64, device=logits_RV.device)
    kernel.sample(logits_RV, state, rows_R, position, by_row, group | purpose << 16, out_R, drafts_NK)
    return out_R


def fused_draw(logits_RV: Tensor, state: SamplingState, rows_R: Tensor, position_R: Tensor, group: int) -> Tensor:
    """`omni_ar.sampling.draw`, int64 `[R]`, of at most 8,192 ids in each row."""
    from omni_ar.kernels.sampling import kernel  # imports triton

    return kernel.draw(logits_RV, state, rows_R, position_R, group)
