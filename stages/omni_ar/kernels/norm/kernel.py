"""Root mean square normalization in one pass: a row is read once and stays in registers, also while a residual addition that is
summed over ranks is read from their memory (`omni.parallel.sum_kernel`).

Shape legend: T rows, D width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from omni.parallel.rank_memory import RankMemory
from omni.parallel.sum_kernel import tile_sum
from omni_ar.kernels.overlap import overlaps
from omni_ar.kernels.prefetch import prefetch_bytes, prefetch_l2

# Minimum number of elements of one program, so that narrow rows share a program.
_PROGRAM = 1024


def rms_norm(x: Tensor, weight_D: Tensor, eps: float, prefetch: Tensor | None = None) -> Tensor:
    x_TD = x.reshape(-1, x.shape[-1])
    out_TD = torch.empty_like(x_TD, memory_format=torch.contiguous_format)
    _launch(x_TD, None, weight_D, eps, out_TD, None, prefetch, None)
    return out_TD.view(x.shape)


def add_rms_norm(
    x_TD: Tensor,
    delta_TD: Tensor,
    weight_D: Tensor,
    eps: float,
    prefetch: Tensor | None = None,
    peers: RankMemory | None = None,
) -> tuple[Tensor, Tensor]:
    """peers: of the ranks that `delta_TD` is summed over; None if it is not part of a sum."""
    out_TD = torch.empty_like(x_TD, memory_format=torch.contiguous_format)
    sum_TD = torch.empty_like(out_TD)
    _launch(x_TD, delta_TD, weight_D, eps, out_TD, sum_TD, prefetch, peers)
    return out_TD, sum_TD


def residual_sum(x_TD: Tensor, delta_TD: Tensor, peers: RankMemory) -> Tensor:
    sum_TD = torch.empty_like(x_TD, memory_format=torch.contiguous_format)
    _launch(x_TD, delta_TD, None, 0.0, None, sum_TD, None, peers)
    return sum_TD


def _launch(
    x_TD: Tensor,
    delta_TD: Tensor | None,
    weight_D: Tensor | None,
    eps: float,
    out_TD: Tensor | None,
    sum_TD: Tensor | None,
    prefetch: Tensor | None,
    peers: RankMemory | None,
) -> None:
    """Launches the kernel. weight_D, out_TD: weight and output of the norm; None without a norm. sum_TD: None without an
    addition."""
    rows, width = x_TD.shape
    if not rows:
        return
    block_d = triton.next_power_of_2(width)
    block_t = max(1, min(_PROGRAM // block_d, triton.next_power_of_2(rows)))
    # Eight elements a thread: one 16-byte load of a half-precision row.
    warps = min(max(block_t * block_d // 256, 1), 16)
    # One part, or several in fp32.
    delta_PTD = x_TD[None] if delta_TD is None else delta_TD if delta_TD.ndim == 3 else delta_TD[None]
    overlap = overlaps(x_TD)
    _rms_norm[(triton.cdiv(rows, block_t),)](
        x_TD,
        delta_PTD,
        x_TD if weight_D is None else weight_D,
        sum_TD if out_TD is None else out_TD,
        out_TD if sum_TD is None else sum_TD,
        x_TD if prefetch is None else prefetch,
        x_TD if peers is None else peers.bases,
        rows,
        x_TD.stride(0),
        delta_PTD.stride(1),
        delta_PTD.stride(0),
        eps,
        ADD=delta_TD is not None,
        NORM=weight_D is not None,
        PARTS=delta_PTD.shape[0],
        RANK=0 if peers is None else peers.rank,
        SIZE=1 if peers is None else len(peers.bases),
        MOST_BYTES=0 if peers is None else peers.most_bytes,
        WIDTH=width,
        PREFETCH_BYTES=prefetch_bytes(prefetch, rows, overlap),
        OVERLAP=overlap,
        BLOCK_T=block_t,
        BLOCK_D=block_d,
        num_warps=warps,
        launch_pdl=overlap,
    )


@triton.jit(do_not_specialize=["rows"])
def _rms_norm(
    x_ptr,
    delta_ptr,
    weight_ptr,
    out_ptr,
    sum_ptr,
    prefetch_ptr,
    bases_ptr,
    rows,
    x_stride,
    delta_stride,
    part_stride,
    eps,
    ADD: tl.constexpr,
    NORM: tl.constexpr,
    PARTS: tl.constexpr,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    MOST_BYTES: tl.constexpr,
    WIDTH: tl.constexpr,
    PREFETCH_BYTES: tl.constexpr,
    OVERLAP: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row_T1 = (tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T))[:, None]
    column_1D = tl.arange(0, BLOCK_D)[None, :]
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        prefetch_l2(prefetch_ptr, tl.program_id(0), tl.num_programs(0), PREFETCH_BYTES)
    if NORM:
        weight_1D = tl.load(weight_ptr + column_1D, mask=column_1D < WIDTH, other=0.0).to(tl.float32)
    if SIZE > 1:
        own = tl.load(bases_ptr + RANK)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    inside_TD = (row_T1 < rows) & (column_1D < WIDTH)
    x_TD = tl.load(x_ptr + row_T1 * x_stride + column_1D, mask=inside_TD, other=0.0).to(tl.float32)
    dense_TD = row_T1 * WIDTH + column_1D
    if ADD:
        delta_ptr += row_T1 * delta_stride + column_1D
        delta_TD = tl.load(delta_ptr, mask=inside_TD, other=0.0)
        for part in tl.static_range(1, PARTS):
            delta_TD += tl.load(delta_ptr + part * part_stride, mask=inside_TD, other=0.0)
        # Rounded where a separate product would be rounded.
        delta_TD = delta_TD.to(sum_ptr.dtype.element_ty)
        if SIZE > 1:
            total_TD = tile_sum(delta_TD, dense_TD, inside_TD, bases_ptr, own, RANK, SIZE, MOST_BYTES)
            delta_TD = total_TD.to(sum_ptr.dtype.element_ty)
        # The norm applies to the stored (rounded) sum, which the next layer adds to.
        stored_TD = (x_TD + delta_TD.to(tl.float32)).to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + dense_TD, stored_TD, mask=inside_TD)
        x_TD = stored_TD.to(tl.float32)
    if NORM:
        mean_T1 = tl.sum(x_TD * x_TD, axis=1, keep_dims=True) / WIDTH
        out_TD = x_TD * tl.rsqrt(mean_T1 + eps) * weight_1D
        tl.store(out_ptr + dense_TD, out_TD.to(out_ptr.dtype.element_ty), mask=inside_TD)
