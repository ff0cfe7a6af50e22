"""Launches of the sampling kernels.

Shape legend: R rows of the batch, N rows of the state, V vocabulary.
"""

from typing import Final

import torch
import triton
from torch import Tensor

from omni_ar.kernels.sampling.finish import finish
from omni_ar.kernels.sampling.scan import scan
from omni_ar.kernels.sampling.single import draw_row, sample_row
from omni_ar.kernels.tuning import Config, tuned
from omni_ar.sampling.needs import TOP_K, TOP_P
from omni_ar.sampling.state import SamplingState

# Values that one program holds: those of a narrow vocabulary's row, or what was gathered of a wide one's.
_ROOM: Final = 4096
# Values that are compared each with each.
_FEW: Final = 128

_WIDE: Final = {"block": 2048, "segment": 128, "nucleus": 256, "scan_warps": 4, "scan_registers": 64, "finish_warps": 8}
"""Of a wide vocabulary: ids of a program and of a segment; segments that are searched for what top-p keeps, before all are.

scan_registers: of a thread at most; 0 leaves it to the compiler.
"""


def sample(
    logits_RV: Tensor, state: SamplingState, rows_R: Tensor, position: Tensor, by_row: bool, use: int, out_R: Tensor
) -> None:
    """position: `[N]` if `by_row`, else `[R]`. use: what `gumbel` makes of group and purpose."""
    if logits_RV.shape[1] <= _ROOM:
        sample_narrow(logits_RV, state, rows_R, position, by_row, use, out_R)
    else:
        # For any number of rows the same: sums would round otherwise, and a row's tokens depend on its neighbours.
        settings = tuned("sampling", logits_RV.device, f"V{logits_RV.shape[1]}", 1, _WIDE)
        sample_wide(logits_RV, state, rows_R, position, by_row, use, out_R, settings)


def draw(
    logits_RV: Tensor,
    state: SamplingState,
    rows_R: Tensor,
    position_R: Tensor,
    use: int,
    top_k: int,
    top_p: float,
    warps: int | None = None,
) -> Tensor:
    """warps: None for those that were measured."""
    rows, vocab = logits_RV.shape
    block = triton.next_power_of_2(vocab)
    out_R = torch.empty(rows, dtype=torch.int64, device=logits_RV.device)
    spare_x_RF, spare_ids_RF = _spare(logits_RV, _FEW)
    draw_row[(rows,)](
        logits_RV,
        logits_RV.stride(0),
        rows_R,
        position_R,
        state.temperature,
        state.seed,
        state.sample_index,
        spare_x_RF,
        spare_ids_RF,
        out_R,
        min(top_k, vocab),
        1 - top_p,
        use,
        vocab,
        NEEDS=(TOP_K if top_k else 0) | (TOP_P if top_p < 1 else 0),
        BLOCK=block,
        FEW=_FEW,
        num_warps=warps or _warps("draw", block, logits_RV.device),
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
    warps: int | None = None,
) -> None:
    """warps: None for those that were measured."""
    rows, vocab = logits_RV.shape
    block = max(triton.next_power_of_2(vocab), 16)
    spare_x_RF, spare_ids_RF = _spare(logits_RV, _FEW)
    sample_row[(rows,)](
        logits_RV,
        logits_RV.stride(0),
        *_inputs(state, rows_R, position),
        state.top_k,
        state.top_p,
        state.min_p,
        _work(logits_RV),
        spare_x_RF,
        spare_ids_RF,
        out_R,
        out_R.stride(0),
        use,
        vocab,
        BY_ROW=by_row,
        BLOCK=block,
        FEW=_FEW,
        num_warps=warps or _warps("sample", block, logits_RV.device),
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
    settings: Config,
) -> None:
    """settings: as `_WIDE`."""
    (rows, vocab), device = logits_RV.shape, logits_RV.device
    block, segment = settings["block"], settings["segment"]
    blocks = triton.cdiv(vocab, block)
    segments = blocks * (block // segment)
    work_RV = _work(logits_RV)
    segments_RS = torch.empty(rows, segments, device=device)
    best_RB = torch.empty(rows, blocks, dtype=torch.int64, device=device)
    weight_RB = torch.empty(rows, blocks, device=device)
    scan[(blocks, rows)](
        logits_RV,
        logits_RV.stride(0),
        *_inputs(state, rows_R, position),
        work_RV,
        segments_RS,
        best_RB,
        weight_RB,
        use,
        vocab,
        BY_ROW=by_row,
        BLOCK=block,
        SEGMENT=segment,
        num_warps=settings["scan_warps"],
        maxnreg=settings["scan_registers"] or None,
        enable_fp_fusion=False,
    )
    spare_x_RF, spare_ids_RF = _spare(logits_RV, _ROOM + _FEW)
    finish[(rows,)](
        rows_R,
        position,
        position.stride(0),
        state.needs,
        state.top_k,
        state.top_p,
        state.min_p,
        state.seed,
        state.sample_index,
        work_RV,
        segments_RS,
        best_RB,
        weight_RB,
        torch.empty(rows, segments, dtype=torch.int32, device=device),
        spare_x_RF,
        spare_ids_RF,
        out_R,
        out_R.stride(0),
        use,
        vocab,
        blocks,
        BY_ROW=by_row,
        SEGMENT=segment,
        PER_BLOCK=block // segment,
        PADDED_BLOCKS=triton.next_power_of_2(blocks),
        PADDED_SEGMENTS=triton.next_power_of_2(segments),
        NUCLEUS=settings["nucleus"],
        ROOM=_ROOM,
        FEW=_FEW,
        num_warps=settings["finish_warps"],
    )


def _inputs(state: SamplingState, rows_R: Tensor, position: Tensor) -> tuple[object, ...]:
    """What both kernels that read logits take next, in this order."""
    return (
        rows_R,
        position,
        position.stride(0),
        state.needs,
        state.temperature,
        state.seed,
        state.sample_index,
        state.repetition,
        state.seen.view(torch.uint8),
        state.frequency,
        state.presence,
        state.counts,
        state.bias_ids,
        state.biases,
        state.forbidden.view(torch.uint8),
        state.bad_words,
        state.recent,
        state.min_tokens,
        state.stop_ids,
    )


def _work(logits_RV: Tensor) -> Tensor:
    return torch.empty(logits_RV.shape, dtype=torch.float32, device=logits_RV.device)


def _spare(logits_RV: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Values and ids of each row."""
    shape, device = (logits_RV.shape[0], width), logits_RV.device
    return torch.empty(shape, device=device), torch.empty(shape, dtype=torch.int32, device=device)


def _warps(name: str, block: int, device: torch.device) -> int:
    """Of a program that holds a row of `block` values."""
    return tuned("sampling", device, f"{name}-{block}", 1, {"warps": min(max(block // 512, 1), 8)})["warps"]
