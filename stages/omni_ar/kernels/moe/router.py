"""The router of a few rows: residual addition, norm and logits in one kernel. A program computes a few experts of one
token."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from omni_ar.kernels.moe.experts import Experts, Norm
from omni_ar.kernels.overlap import overlaps

_BLOCK_N = 2


class Routed(NamedTuple):
    """Inputs of the experts of a few rows.

    normed_TD: the experts' input. sum_TD: the residual stream. logits_TN: the router's E logits, then the shared
    expert's.
    """

    normed_TD: Tensor
    sum_TD: Tensor
    logits_TN: Tensor


@triton.jit
def _router_kernel(
    x_ptr,
    delta_ptr,
    norm_ptr,
    router_ptr,
    share_ptr,
    normed_ptr,
    sum_ptr,
    logits_ptr,
    x_stride,
    delta_stride,
    part_stride,
    eps,
    D: tl.constexpr,
    E: tl.constexpr,
    SHARED: tl.constexpr,
    NORM: tl.constexpr,
    PARTS: tl.constexpr,
    OVERLAP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    dtype = normed_ptr.dtype.element_ty
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    inside = d < D
    # In flight while the previous kernel ends.
    weights = tl.load(router_ptr + n[:, None] * D + d[None, :], mask=(n < E)[:, None] & inside[None, :], other=0.0)
    weights = weights.to(tl.float32)
    if SHARED:
        share = tl.load(share_ptr + d, mask=inside, other=0.0).to(tl.float32)
        weights = tl.where((n == E)[:, None], share[None, :], weights)
    if NORM:
        scale = tl.load(norm_ptr + d, mask=inside, other=0.0).to(tl.float32)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    # All programs of a token compute the sum and the normalized row; the first stores them.
    first = tl.program_id(0) == 0
    x = tl.load(x_ptr + token * x_stride + d, mask=inside, other=0.0).to(tl.float32)
    if PARTS > 0:
        delta_ptr += token * delta_stride + d
        delta = tl.load(delta_ptr, mask=inside, other=0.0)
        for part in tl.static_range(1, PARTS):
            delta += tl.load(delta_ptr + part * part_stride, mask=inside, other=0.0)
        # Rounded where a separate product would be rounded, and as the sum is stored.
        x = (x + delta.to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        if first:
            tl.store(sum_ptr + token * D + d, x.to(dtype), mask=inside)
    if NORM:
        x = (x * tl.rsqrt(tl.sum(x * x, axis=0) / D + eps) * scale).to(dtype).to(tl.float32)
        if first:
            tl.store(normed_ptr + token * D + d, x.to(dtype), mask=inside)
    logits = tl.sum(weights * x[None, :], axis=1)
    tl.store(logits_ptr + token * (E + SHARED) + n, logits.to(dtype), mask=n < E + SHARED)


def route_few(x_TD: Tensor, delta_TD: Tensor | None, norm: Norm | None, experts: Experts) -> Routed:
    """x_TD: the residual stream without `delta_TD`, which may be in parts. norm: None where x needs no norm."""
    (tokens, width), count = x_TD.shape, experts.router_ED.shape[0]
    shared = int(experts.shared is not None)
    new = torch.empty_like(x_TD, memory_format=torch.contiguous_format)
    normed_TD = x_TD if norm is None else new
    sum_TD = x_TD if delta_TD is None else torch.empty_like(new)
    logits_TN = x_TD.new_empty(tokens, count + shared)
    delta_PTD = x_TD[None] if delta_TD is None else delta_TD if delta_TD.ndim == 3 else delta_TD[None]
    block_d = triton.next_power_of_2(width)
    overlap = overlaps(x_TD)
    _router_kernel[(triton.cdiv(count + shared, _BLOCK_N), tokens)](
        x_TD,
        delta_PTD,
        experts.router_ED if norm is None else norm.weight_D,
        experts.router_ED,
        experts.router_ED if experts.shared is None else experts.shared.gate_1D,
        normed_TD,
        sum_TD,
        logits_TN,
        x_TD.stride(0),
        delta_PTD.stride(1),
        delta_PTD.stride(0),
        0.0 if norm is None else norm.eps,
        D=width,
        E=count,
        SHARED=shared,
        NORM=norm is not None,
        PARTS=0 if delta_TD is None else delta_PTD.shape[0],
        OVERLAP=overlap,
        BLOCK_N=_BLOCK_N,
        BLOCK_D=block_d,
        num_warps=min(max(block_d // 256, 1), 8),
        launch_pdl=overlap,
    )
    return Routed(normed_TD, sum_TD, logits_TN)
