"""Launches of the sampling kernels.

Shape legend: R rows of the batch, N rows of the state, V vocabulary.
"""

from collections import namedtuple
from dataclasses import fields
from typing import Any, Final, NamedTuple

import torch
import triton
from torch import Tensor

from omni.device.kernel_choice import kernel_device
from omni_ar.kernels.overlap import overlap_options, overlaps
from omni_ar.kernels.sampling.finish import finish
from omni_ar.kernels.sampling.scan import scan
from omni_ar.kernels.sampling.settings import RowSettings, WideSettings, row_settings, wide_settings
from omni_ar.kernels.sampling.single import draw_row, sample_row
from omni_ar.kernels.sampling.state import SamplingState

# Values that one program holds: a row of a narrow vocabulary, or the gathered values of a row of a wide one.
_CAPACITY: Final = 4096
# Maximum number of values for which all pairs are compared.
_FEW: Final = 128

_COLUMNS = [
    field.name
    for field in fields(SamplingState)
    if field.name not in ("params", "uses") and not field.name.startswith("code_")
]
Pointers: Any = namedtuple("Pointers", _COLUMNS)  # type: ignore[misc]
"""Fields of `SamplingState` that sampling tokens reads, bools as bytes."""


class CodePointers(NamedTuple):
    """Fields of `SamplingState` that drawing the codes of a frame after the first reads: those that begin with `code_`,
    and seeds."""

    needs: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    sample_index: Tensor


def _pointers(state: SamplingState) -> Any:
    tensors = [getattr(state, name) for name in _COLUMNS]
    return Pointers(*(t.view(torch.uint8) if t.dtype == torch.bool else t for t in tensors))


def _code_pointers(state: SamplingState) -> CodePointers:
    return CodePointers(
        needs=state.needs,
        temperature=state.code_temperature,
        top_k=state.code_top_k,
        top_p=state.code_top_p,
        seed=state.seed,
        sample_index=state.sample_index,
    )


def sample(
    logits_RV: Tensor,
    state: SamplingState,
    rows_R: Tensor,
    position: Tensor,
    by_row: bool,
    use: int,
    out_R: Tensor,
    drafts_NK: Tensor | None = None,
) -> None:
    """position: `[N]` if `by_row`, else `[R]`. use: group and purpose, as in `gumbel`. drafts_NK: as in `fused_sample`."""
    vocab = logits_RV.shape[1]
    if vocab <= _CAPACITY:
        narrow = row_settings(kernel_device(logits_RV), "sample", _block(vocab))
        sample_narrow(logits_RV, state, rows_R, position, by_row, use, out_R, narrow, drafts_NK)
    else:
        wide = wide_settings(kernel_device(logits_RV), vocab)
        sample_wide(logits_RV, state, rows_R, position, by_row, use, out_R, wide, drafts_NK)


def draw(
    logits_RV: Tensor,
    state: SamplingState,
    rows_R: Tensor,
    position_R: Tensor,
    use: int,
    settings: RowSettings | None = None,
) -> Tensor:
    """settings: None for the measured ones."""
    rows, vocab = logits_RV.shape
    block = triton.next_power_of_2(vocab)
    settings = settings or row_settings(kernel_device(logits_RV), "draw", block)
    out_R = torch.empty(rows, dtype=torch.int64, device=logits_RV.device)
    scratch_x_RF, scratch_ids_RF = _scratch(logits_RV, _FEW)
    draw_row[(rows,)](
        logits_RV,
        logits_RV.stride(0),
        rows_R,
        position_R,
        _code_pointers(state),
        scratch_x_RF,
        scratch_ids_RF,
        out_R,
        use,
        vocab,
        BLOCK=block,
        FEW=_FEW,
        num_warps=settings.warps,
        **overlap_options(overlaps(logits_RV)),
    )
    return out_R


def sample_narrow(
    logits_RV: Tensor,
    state: SamplingState,
    rows_R: Tensor,
    position: Tensor,
    by_row: bool,
    use: int,
    out_R: Tensor,
    settings: RowSettings,
    drafts_NK: Tensor | None = None,
) -> None:
    rows, vocab = logits_RV.shape
    scratch_x_RF, scratch_ids_RF = _scratch(logits_RV, _FEW)
    sample_row[(rows,)](
        logits_RV,
        logits_RV.stride(0),
        rows_R,
        position,
        position.stride(0),
        _pointers(state),
        _work(logits_RV),
        scratch_x_RF,
        scratch_ids_RF,
        out_R,
        out_R.stride(0),
        state.needs if drafts_NK is None else drafts_NK,  # without drafts it is not read
        use,
        vocab,
        BY_ROW=by_row,
        BLOCK=_block(vocab),
        FEW=_FEW,
        DRAFTS=0 if drafts_NK is None else drafts_NK.shape[1],
        num_warps=settings.warps,
        enable_fp_fusion=False,
    )


def sample_wide(
    logits_RV: Tensor,
    state: SamplingState,
    rows_R: Tensor,
    position: Tensor,
    by_row: bool,
    use: int,
    out_R: Tensor,
    settings: WideSettings,
    drafts_NK: Tensor | None = None,
) -> None:
    (rows, vocab), device = logits_RV.shape, logits_RV.device
    blocks = triton.cdiv(vocab, settings.block)
    tiles = blocks * (settings.block // settings.tile)
    drawn_of = (rows_R, position, position.stride(0), _pointers(state))
    # Buffers from the first kernel to the second.
    left = (
        _work(logits_RV),
        torch.empty(rows, tiles, dtype=torch.float32, device=device),
        torch.empty(rows, blocks, dtype=torch.int64, device=device),
        torch.empty(rows, blocks, dtype=torch.float32, device=device),
    )
    scan[(blocks, rows)](
        logits_RV,
        logits_RV.stride(0),
        *drawn_of,
        *left,
        state.needs if drafts_NK is None else drafts_NK,  # without drafts it is not read
        use,
        vocab,
        BY_ROW=by_row,
        BLOCK=settings.block,
        TILE=settings.tile,
        DRAFTS=0 if drafts_NK is None else drafts_NK.shape[1],
        num_warps=settings.scan_warps,
        maxnreg=settings.scan_registers or None,
        enable_fp_fusion=False,
    )
    finish[(rows,)](
        *drawn_of,
        *left,
        torch.empty(rows, tiles, dtype=torch.int32, device=device),
        *_scratch(logits_RV, _CAPACITY + _FEW),
        out_R,
        out_R.stride(0),
        use,
        vocab,
        blocks,
        BY_ROW=by_row,
        TILE=settings.tile,
        PER_BLOCK=settings.block // settings.tile,
        PADDED_BLOCKS=triton.next_power_of_2(blocks),
        PADDED_TILES=triton.next_power_of_2(tiles),
        NUCLEUS=settings.nucleus,
        CAPACITY=_CAPACITY,
        FEW=_FEW,
        DRAFTS=0 if drafts_NK is None else drafts_NK.shape[1],
        num_warps=settings.finish_warps,
    )


def _block(vocab: int) -> int:
    """Block size of a program for a narrow vocabulary."""
    return max(int(triton.next_power_of_2(vocab)), 16)


def _work(logits_RV: Tensor) -> Tensor:
    return torch.empty(logits_RV.shape, dtype=torch.float32, device=logits_RV.device)


def _scratch(logits_RV: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Scratch memory for `width` values and ids of each row."""
    shape, device = (logits_RV.shape[0], width), logits_RV.device
    values = torch.empty(shape, dtype=torch.float32, device=device)
    return values, torch.empty(shape, dtype=torch.int32, device=device)
