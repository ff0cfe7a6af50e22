"""A program computes one head of one block. Its queries and all keys that they see fit into registers at once, so the softmax needs
no running maximum. Keys and values of neighbours are read where they are, without a copy.

Shape legend: see the package; besides, f frames and w columns of a tile, padded to the size of a matrix instruction.
"""

import math

import triton
import triton.language as tl
from torch import Tensor

_SMALLEST = 16
"""Smallest side of a matrix instruction."""


def attend_blocks(
    qkv_UBKF3HW: Tensor,
    bias_N1FJ: Tensor,
    before_UBF2HW: Tensor | None,
    *,
    back: bool,
    ahead: bool,
    precision: str,
) -> Tensor:
    """Launches the kernel. precision: of products of float32, `"tf32"` or `"ieee"`."""
    branches, rows, blocks, frames, _, heads, width = qkv_UBKF3HW.shape
    out_NFHW = qkv_UBKF3HW.new_empty(branches * rows * blocks, frames, heads, width)
    before = qkv_UBKF3HW if before_UBF2HW is None else before_UBF2HW
    _attend_blocks[(branches * rows * blocks, heads)](
        qkv_UBKF3HW,
        bias_N1FJ,
        before,
        out_NFHW,
        rows,
        blocks,
        bias_N1FJ.stride(0),
        before.stride(0),
        before.stride(1),
        math.log2(math.e) / math.sqrt(width),
        HEADS=heads,
        FRAMES=frames,
        WIDTH=width,
        BACK=back,
        AHEAD=ahead,
        BEFORE=before_UBF2HW is not None,
        PRECISION=precision,
        BLOCK_F=max(triton.next_power_of_2(frames), _SMALLEST),
        BLOCK_W=max(triton.next_power_of_2(width), _SMALLEST),
        num_warps=2,
    )
    return out_NFHW


@triton.jit(do_not_specialize=["rows", "blocks"])
def _attend_blocks(
    qkv_ptr,
    bias_ptr,
    before_ptr,
    out_ptr,
    rows,
    blocks,
    bias_stride,
    before_stride_u,
    before_stride_b,
    scale,
    HEADS: tl.constexpr,
    FRAMES: tl.constexpr,
    WIDTH: tl.constexpr,
    BACK: tl.constexpr,
    AHEAD: tl.constexpr,
    BEFORE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    INNER: tl.constexpr = HEADS * WIDTH
    BLOCK: tl.constexpr = FRAMES * 3 * INNER
    number, head = tl.program_id(0), tl.program_id(1)
    block = number % blocks
    frame_f, column_w = tl.arange(0, BLOCK_F), tl.arange(0, BLOCK_W)
    inside_fw = (frame_f < FRAMES)[:, None] & (column_w < WIDTH)[None, :]
    at_fw = frame_f[:, None] * (3 * INNER) + head * WIDTH + column_w[None, :]
    own_ptr = qkv_ptr + number.to(tl.int64) * BLOCK
    q_fw = tl.load(own_ptr + at_fw, mask=inside_fw, other=0.0)
    k_fw = tl.load(own_ptr + INNER + at_fw, mask=inside_fw, other=0.0)
    v_fw = tl.load(own_ptr + 2 * INNER + at_fw, mask=inside_fw, other=0.0)
    bias_f = bias_ptr + number.to(tl.int64) * bias_stride + frame_f
    scores = _scores(q_fw, k_fw, bias_f + FRAMES, frame_f, scale, FRAMES, PRECISION)
    highest_f = tl.max(scores, 1)

    if BACK:
        # Without a block before the first, its bias hides the values read in its place.
        back_ptr = own_ptr - tl.where(block > 0, BLOCK, 0)
        if BEFORE and block == 0:
            row, branch = number // blocks % rows, number // blocks // rows
            first_ptr = before_ptr + branch.to(tl.int64) * before_stride_u + row.to(tl.int64) * before_stride_b
            at_first_fw = frame_f[:, None] * (2 * INNER) + head * WIDTH + column_w[None, :]
            back_k_fw = tl.load(first_ptr + at_first_fw, mask=inside_fw, other=0.0)
            back_v_fw = tl.load(first_ptr + INNER + at_first_fw, mask=inside_fw, other=0.0)
        else:
            back_k_fw = tl.load(back_ptr + INNER + at_fw, mask=inside_fw, other=0.0)
            back_v_fw = tl.load(back_ptr + 2 * INNER + at_fw, mask=inside_fw, other=0.0)
        back_scores = _scores(q_fw, back_k_fw, bias_f, frame_f, scale, FRAMES, PRECISION)
        highest_f = tl.maximum(highest_f, tl.max(back_scores, 1))
    if AHEAD:
        ahead_ptr = own_ptr + tl.where(block + 1 < blocks, BLOCK, 0)
        ahead_k_fw = tl.load(ahead_ptr + INNER + at_fw, mask=inside_fw, other=0.0)
        ahead_v_fw = tl.load(ahead_ptr + 2 * INNER + at_fw, mask=inside_fw, other=0.0)
        ahead_scores = _scores(q_fw, ahead_k_fw, bias_f + 2 * FRAMES, frame_f, scale, FRAMES, PRECISION)
        highest_f = tl.maximum(highest_f, tl.max(ahead_scores, 1))

    weights = tl.exp2(scores - highest_f[:, None])
    total_f = tl.sum(weights, 1)
    sum_fw = tl.dot(weights.to(v_fw.dtype), v_fw, input_precision=PRECISION)
    if BACK:
        weights = tl.exp2(back_scores - highest_f[:, None])
        total_f += tl.sum(weights, 1)
        sum_fw = tl.dot(weights.to(v_fw.dtype), back_v_fw, sum_fw, input_precision=PRECISION)
    if AHEAD:
        weights = tl.exp2(ahead_scores - highest_f[:, None])
        total_f += tl.sum(weights, 1)
        sum_fw = tl.dot(weights.to(v_fw.dtype), ahead_v_fw, sum_fw, input_precision=PRECISION)
    out_fw = number.to(tl.int64) * (FRAMES * INNER) + frame_f[:, None] * INNER + head * WIDTH + column_w[None, :]
    tl.store(out_ptr + out_fw, (sum_fw / total_f[:, None]).to(out_ptr.dtype.element_ty), mask=inside_fw)


@triton.jit
def _scores(q_fw, k_fw, bias_f, frame_f, scale, FRAMES: tl.constexpr, PRECISION: tl.constexpr):
    """Scores as exponents of 2, `[queries, keys]`; -inf for keys that are not seen, and for padding."""
    bias = tl.load(bias_f, mask=frame_f < FRAMES, other=float("-inf")).to(tl.float32)
    return tl.dot(q_fw, tl.trans(k_fw), input_precision=PRECISION) * scale + bias[None, :] * 1.4426950408889634
