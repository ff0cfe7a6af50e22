"""The sum over each token's experts and the shared expert: a program per token, or per part of one."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from omni_ar.kernels.moe.wait import wait_for_previous
from omni_ar.kernels.overlap import overlap_options

# With fewer tokens a row is cut into parts; otherwise most multiprocessors would be idle.
_WHOLE_FROM, _PART = 128, 512
# Eight columns a thread: 16 bytes of a half-precision row, with a token's rows side by side in its registers.
_WARP_COLUMNS = 256


class HeldExperts(NamedTuple):
    """expert_TK: each token's experts. This rank holds `num_held` experts from `first` on."""

    expert_TK: Tensor
    first: int
    num_held: int


@triton.jit(do_not_specialize=["first"])
def _combine_kernel(
    y_ptr,
    weight_ptr,
    expert_ptr,
    shared_ptr,
    x_ptr,
    gate_ptr,
    out_ptr,
    x_stride,
    first,
    D: tl.constexpr,
    K: tl.constexpr,
    HELD: tl.constexpr,
    SHARED: tl.constexpr,
    K_PAD: tl.constexpr,
    BLOCK_D: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    wait_for_previous(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, K_PAD)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = d < D
    weight = tl.load(weight_ptr + token * K + k, mask=k < K, other=0.0)
    held = k < K
    if HELD > 0:  # rows of other experts are undefined
        expert = tl.load(expert_ptr + token * K + k, mask=held, other=-1) - first
        held = held & (expert >= 0) & (expert < HELD)
    y_ptrs = y_ptr + (token * K + k)[:, None] * D + d[None, :]
    y = tl.load(y_ptrs, mask=held[:, None] & inside[None, :], other=0.0)
    total = tl.sum(y.to(tl.float32) * weight[:, None], axis=0)
    if SHARED:  # one program has the whole row
        x = tl.load(x_ptr + token * x_stride + d, mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(gate_ptr + d, mask=inside, other=0.0).to(tl.float32)
        shared = tl.load(shared_ptr + token * D + d, mask=inside, other=0.0).to(tl.float32)
        total += shared / (1 + tl.exp(-tl.sum(x * gate, axis=0)))
    tl.store(out_ptr + token * D + d, total.to(out_ptr.dtype.element_ty), mask=inside)


def combine(
    y_SD: Tensor,
    weight_TK: Tensor,
    overlap: bool = False,
    shared: tuple[Tensor, Tensor, Tensor] | None = None,
    held: HeldExperts | None = None,
) -> Tensor:
    """The weighted sum over each token's experts, in their order: `[T, D]`.

    shared: the result of the shared expert, contiguous, the experts' input, and its gate: `[T, D]`, `[T, D]` and `[1,
    D]`. held: the experts whose rows are summed; None for all.
    """
    (tokens, top_k), width = weight_TK.shape, y_SD.shape[1]
    y_TD = torch.empty(tokens, width, dtype=y_SD.dtype, device=y_SD.device)
    block = max(triton.next_power_of_2(width), _WARP_COLUMNS)
    if tokens < _WHOLE_FROM and shared is None:
        block = min(block, _PART)
    shared_TD, x_TD, gate_1D = (y_TD, y_TD, y_TD) if shared is None else shared
    _combine_kernel[(tokens, triton.cdiv(width, block))](
        y_SD,
        weight_TK,
        weight_TK if held is None else held.expert_TK,
        shared_TD,
        x_TD,
        gate_1D,
        y_TD,
        x_TD.stride(0),
        0 if held is None else held.first,
        D=width,
        K=top_k,
        HELD=0 if held is None else held.num_held,
        SHARED=shared is not None,
        K_PAD=triton.next_power_of_2(top_k),
        BLOCK_D=block,
        **overlap_options(overlap),
        num_warps=min(max(block // _WARP_COLUMNS, 1), 8),
    )
    return y_TD
