"""Rows grouped by expert: two grouped matrix products that read each expert's weights once for each block of rows.

With few rows per expert the products are memory bound, and the weights are the left operand: tensor cores take 64 rows
of weights at a time, against 16 tokens. With many rows the tokens are the left operand.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from omni_ar.kernels.linear import gated_linear, linear
from omni_ar.kernels.moe.combine import HeldExperts, combine
from omni_ar.kernels.moe.experts import Experts, Norm
from omni_ar.kernels.moe.grouping import Groups, route_and_group
from omni_ar.kernels.moe.settings import GroupedProduct, GroupedSettings
from omni_ar.kernels.moe.wait import wait_for_previous
from omni_ar.kernels.norm import add_rms_norm, rms_norm
from omni_ar.kernels.overlap import overlap_options, overlaps


def mix_grouped(
    x_TD: Tensor, delta_TD: Tensor | None, norm: Norm | None, experts: Experts, settings: GroupedSettings
) -> tuple[Tensor, Tensor]:
    """As `mix_experts` of the package."""
    overlap = settings.overlap and overlaps(x_TD)
    sum_TD, normed_TD = x_TD, x_TD.contiguous()
    if norm is not None and delta_TD is not None:
        normed_TD, sum_TD = add_rms_norm(x_TD, delta_TD, norm.weight_D, norm.eps)
    elif norm is not None:
        normed_TD = rms_norm(x_TD, norm.weight_D, norm.eps)
    logits_TE = linear(normed_TD, experts.router_ED)
    weight_TK, expert_TK, groups = route_and_group(
        logits_TE, experts.top_k, experts.norm_topk, settings.block_m, experts.first, experts.num_held
    )
    hidden_SI = multiply_gate_up(normed_TD, experts.gate_up_EXD, groups, experts.top_k, settings.gate, overlap)
    y_SD = multiply_down(hidden_SI, experts.down_EDI, groups, settings.down, overlap, weight_TK.numel())
    held = None if experts.num_held == experts.num_experts else HeldExperts(expert_TK, experts.first, experts.num_held)
    shared = None
    if experts.shared is not None:
        shared_TD = linear(gated_linear(normed_TD, experts.shared.gate_up_XD), experts.shared.down_DI)
        shared = (shared_TD, normed_TD, experts.shared.gate_1D)
    return combine(y_SD, weight_TK, overlap, shared, held), sum_TD


@triton.jit
def _product(
    row_ptrs,
    row_inside,
    weights,
    matrix,
    column,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    MATRICES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WEIGHTS_LEFT: tl.constexpr,
    TMA: tl.constexpr,
):
    """[BLOCK_M, MATRICES * BLOCK_N] = rows @ weights.T over WIDTH, accumulated in float32.

    row_ptrs: the start of each row. weights: consecutive matrices `[COLUMNS, WIDTH]`, a pointer or a descriptor. The
    operand is BLOCK_N rows, from `column` on, of each of the MATRICES matrices from `matrix` on.
    """
    WEIGHT_ROWS: tl.constexpr = MATRICES * BLOCK_N
    k = tl.arange(0, BLOCK_K)
    if not TMA:
        n = tl.arange(0, WEIGHT_ROWS)
        # Rows past the last are computed twice and not stored.
        row = (matrix + n // BLOCK_N).to(tl.int64) * COLUMNS + tl.minimum(column + n % BLOCK_N, COLUMNS - 1)
        weight_ptrs = weights + row * WIDTH
    acc = tl.zeros([WEIGHT_ROWS, BLOCK_M] if WEIGHTS_LEFT else [BLOCK_M, WEIGHT_ROWS], tl.float32)
    for start in range(0, WIDTH, BLOCK_K):
        inside = start + k < WIDTH
        x_inside = row_inside[:, None] if WIDTH % BLOCK_K == 0 else row_inside[:, None] & inside[None, :]
        x = tl.load(row_ptrs[:, None] + (start + k)[None, :], mask=x_inside, other=0.0)
        if TMA:
            w = weights.load([matrix, column, start]).reshape(WEIGHT_ROWS, BLOCK_K)
        elif WIDTH % BLOCK_K == 0:
            w = tl.load(weight_ptrs[:, None] + (start + k)[None, :])
        else:
            w = tl.load(weight_ptrs[:, None] + (start + k)[None, :], mask=inside[None, :], other=0.0)
        if WEIGHTS_LEFT:
            acc = tl.dot(w, tl.trans(x), acc, input_precision="ieee")
        else:
            acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    if WEIGHTS_LEFT:
        acc = tl.trans(acc)
    return acc


@triton.jit
def _gate_up_tile(
    x_ptr,
    gate_up,
    pair_ptr,
    hidden_ptr,
    expert,
    start,
    end,
    column,
    D: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WEIGHTS_LEFT: tl.constexpr,
    TMA: tl.constexpr,
):
    position = start + tl.arange(0, BLOCK_M)
    inside = position < end
    token = tl.load(pair_ptr + position, mask=inside, other=0) // K
    acc = _product(
        x_ptr + token.to(tl.int64) * D,
        inside,
        gate_up,
        expert * 2,
        column,
        D,
        I,
        2,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
        WEIGHTS_LEFT,
        TMA,
    )
    # Rounded where separate products would have been.
    dtype = hidden_ptr.dtype.element_ty
    gate, up = acc.to(dtype).reshape(BLOCK_M, 2, BLOCK_N).permute(0, 2, 1).split()
    gate = gate.to(tl.float32)
    silu = (gate / (1 + tl.exp(-gate))).to(dtype).to(tl.float32)
    i = column + tl.arange(0, BLOCK_N)
    hidden_ptrs = hidden_ptr + position.to(tl.int64)[:, None] * I + i[None, :]
    tl.store(hidden_ptrs, (silu * up.to(tl.float32)).to(dtype), mask=inside[:, None] & (i < I)[None, :])


@triton.jit
def _down_tile(
    hidden_ptr,
    down,
    pair_ptr,
    y_ptr,
    expert,
    start,
    end,
    column,
    D: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WEIGHTS_LEFT: tl.constexpr,
    TMA: tl.constexpr,
):
    position = start + tl.arange(0, BLOCK_M)
    inside = position < end
    acc = _product(
        hidden_ptr + position.to(tl.int64) * I,
        inside,
        down,
        expert,
        column,
        I,
        D,
        1,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
        WEIGHTS_LEFT,
        TMA,
    )
    d = column + tl.arange(0, BLOCK_N)
    pair = tl.load(pair_ptr + position, mask=inside, other=0)
    y_ptrs = y_ptr + pair.to(tl.int64)[:, None] * D + d[None, :]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), mask=inside[:, None] & (d < D)[None, :])


@triton.jit(do_not_specialize=["B"])
def _grouped_gate_up(
    x_ptr,
    gate_up,
    pair_ptr,
    block_ptr,
    hidden_ptr,
    B,
    D: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WEIGHTS_LEFT: tl.constexpr,
    TMA: tl.constexpr,
    HALVES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """hidden_SI, in sorted order, = silu(gate(x)) * up(x): BLOCK_N columns of one block of rows."""
    wait_for_previous(OVERLAP)
    columns: tl.constexpr = (I + BLOCK_N - 1) // BLOCK_N
    # Columns vary first: programs that run side by side read one expert's weights in order.
    block = tl.program_id(0) // columns
    column = tl.program_id(0) % columns * BLOCK_N
    expert = tl.load(block_ptr + block)
    if expert < 0:
        return
    start = tl.load(block_ptr + B + block)
    end = tl.load(block_ptr + 2 * B + block)
    if HALVES:
        if end - start <= BLOCK_M // 2:
            _gate_up_tile(
                x_ptr, gate_up, pair_ptr, hidden_ptr, expert, start, end, column,
                D, I, K, BLOCK_M // 2, BLOCK_N, BLOCK_K, WEIGHTS_LEFT, TMA,
            )  # fmt: skip
        else:
            _gate_up_tile(
                x_ptr, gate_up, pair_ptr, hidden_ptr, expert, start, end, column,
                D, I, K, BLOCK_M, BLOCK_N, BLOCK_K, WEIGHTS_LEFT, TMA,
            )  # fmt: skip
    else:
        _gate_up_tile(
            x_ptr, gate_up, pair_ptr, hidden_ptr, expert, start, end, column,
            D, I, K, BLOCK_M, BLOCK_N, BLOCK_K, WEIGHTS_LEFT, TMA,
        )  # fmt: skip


@triton.jit(do_not_specialize=["B"])
def _grouped_down(
    hidden_ptr,
    down,
    pair_ptr,
    block_ptr,
    y_ptr,
    B,
    D: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WEIGHTS_LEFT: tl.constexpr,
    TMA: tl.constexpr,
    HALVES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """y_SD, in the order of all pairs: BLOCK_N columns of one block of rows."""
    wait_for_previous(OVERLAP)
    columns: tl.constexpr = (D + BLOCK_N - 1) // BLOCK_N
    block = tl.program_id(0) // columns
    column = tl.program_id(0) % columns * BLOCK_N
    expert = tl.load(block_ptr + block)
    if expert < 0:
        return
    start = tl.load(block_ptr + B + block)
    end = tl.load(block_ptr + 2 * B + block)
    if HALVES:
        if end - start <= BLOCK_M // 2:
            _down_tile(
                hidden_ptr, down, pair_ptr, y_ptr, expert, start, end, column,
                D, I, BLOCK_M // 2, BLOCK_N, BLOCK_K, WEIGHTS_LEFT, TMA,
            )  # fmt: skip
        else:
            _down_tile(
                hidden_ptr, down, pair_ptr, y_ptr, expert, start, end, column,
                D, I, BLOCK_M, BLOCK_N, BLOCK_K, WEIGHTS_LEFT, TMA,
            )  # fmt: skip
    else:
        _down_tile(
            hidden_ptr, down, pair_ptr, y_ptr, expert, start, end, column,
            D, I, BLOCK_M, BLOCK_N, BLOCK_K, WEIGHTS_LEFT, TMA,
        )  # fmt: skip


def _operand(weights: Tensor, matrices: int, settings: GroupedProduct) -> Tensor | TensorDescriptor:
    """The kernel argument for weights with `matrices` consecutive matrices per expert: a tensor, or a descriptor for
    TMA."""
    if not settings.tma:
        return weights
    experts, rows, columns = weights.shape
    view = weights.view(experts * matrices, rows // matrices, columns)
    return TensorDescriptor.from_tensor(view, [matrices, settings.n, settings.k])


def multiply_gate_up(
    x_TD: Tensor, gate_up_EXD: Tensor, groups: Groups, top_k: int, settings: GroupedProduct, overlap: bool = False
) -> Tensor:
    """`silu(gate(x)) * up(x)` of each pair, `[S, I]` in sorted order. overlap: whether the kernel starts while the
    previous one still runs."""
    intermediate = gate_up_EXD.shape[1] // 2
    hidden_SI = torch.empty(groups.pair_S.shape[0], intermediate, dtype=x_TD.dtype, device=x_TD.device)
    blocks = groups.block_3B.shape[1]
    _grouped_gate_up[(blocks * triton.cdiv(intermediate, settings.n),)](
        x_TD,
        _operand(gate_up_EXD, 2, settings),
        *groups[:2],
        hidden_SI,
        blocks,
        D=x_TD.shape[1],
        I=intermediate,
        K=top_k,
        **_launch_options(settings, groups.block_m, overlap),
    )
    return hidden_SI


def multiply_down(
    hidden_SI: Tensor,
    down_EDI: Tensor,
    groups: Groups,
    settings: GroupedProduct,
    overlap: bool = False,
    pairs: int | None = None,
) -> Tensor:
    """`down(hidden)` of each pair, `[S, D]` in the order of pairs. pairs: those of all experts, if there are more than of
    the held ones; the rows of the others are left undefined."""
    width, intermediate = down_EDI.shape[1:]
    y_SD = torch.empty(pairs or hidden_SI.shape[0], width, dtype=hidden_SI.dtype, device=hidden_SI.device)
    blocks = groups.block_3B.shape[1]
    _grouped_down[(blocks * triton.cdiv(width, settings.n),)](
        hidden_SI,
        _operand(down_EDI, 1, settings),
        *groups[:2],
        y_SD,
        blocks,
        D=width,
        I=intermediate,
        **_launch_options(settings, groups.block_m, overlap),
    )
    return y_SD


def _launch_options(settings: GroupedProduct, block_m: int, overlap: bool) -> dict[str, int]:
    """Keyword arguments of both kernels."""
    return {
        "BLOCK_M": block_m,
        "BLOCK_N": settings.n,
        "BLOCK_K": settings.k,
        "WEIGHTS_LEFT": settings.left,
        "TMA": settings.tma,
        "HALVES": settings.halves,
        "num_stages": settings.stages,
        "num_warps": settings.warps,
        **overlap_options(overlap),
    }
