"""The kernel: phases of every layer and pass, with a barrier of all programs between them.

Shape legend: R rows, T tokens of a pass (R, or 2R in the first), D width, X = queries, keys and values, I inner width, V
codes of a group, E width of a code's embedding, G positions of a frame.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from omni_ar.kernels.frame.attend import attend_row
from omni_ar.kernels.frame_decoder.barrier import arrive, wait
from omni_ar.kernels.frame_decoder.products import fetch_tiles, held_norm, held_weights, product
from omni_ar.kernels.sampling.single import drawn_code

PROJECT, QKV, ATTEND, OUT, GATE_UP, DOWN, HEAD, CHOOSE = (tl.constexpr(1 << bit) for bit in range(8))
"""Phases of a pass, in order, as bits."""

ALL = tl.constexpr((1 << 8) - 1)

PER_LAYER, PER_GROUP, AROUND = map(tl.constexpr, (8, 2, 2))
"""Addresses of a layer, of a group, and of the weights around the layers. See `weights.py`."""


class FrameBuffers(NamedTuple):
    """Memory that one phase writes and a later one reads; all dense.

    x_TD: the residual stream. qkv_TX, attended_TY (Y: all query heads), active_TI, logits_RV: outputs of phases. entry_RE:
    embeddings of the newest codes, the inputs of a projection. sum_RE: the sum of a frame's embeddings. key_cache, value_cache:
    `[L, R, G, K, W]`. codes: int64 `[R, G - 1]`. counter: of `arrive`.
    """

    x_TD: Tensor
    qkv_TX: Tensor
    attended_TY: Tensor
    active_TI: Tensor
    logits_RV: Tensor
    entry_RE: Tensor
    sum_RE: Tensor
    key_cache: Tensor
    value_cache: Tensor
    codes: Tensor
    counter: Tensor


class Draws(NamedTuple):
    """What `drawn_code` reads, and its spare memory. parameters: as `CodePointers`."""

    rows_R: Tensor
    position_R: Tensor
    parameters: NamedTuple
    spare_x: Tensor
    spare_ids: Tensor


@triton.jit(
    do_not_specialize=["rows", "start", "first_pass", "last_pass", "first_layer", "last_layer"],
    do_not_specialize_on_alignment=["cos_ptr", "sin_ptr"],
)
def run_passes(
    addresses_ptr,
    buffers,
    draws,
    cos_ptr,
    sin_ptr,
    table_stride,
    rows,
    start,
    first_pass,
    last_pass,
    first_layer,
    last_layer,
    eps,
    scale,
    PHASES: tl.constexpr,
    PROGRAMS: tl.constexpr,
    COMPILES: tl.constexpr,
    COUNT: tl.constexpr,
    LAYERS: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    INNER: tl.constexpr,
    CODES: tl.constexpr,
    ENTRY: tl.constexpr,
    GROUPS: tl.constexpr,
    QK_NORM: tl.constexpr,
    PROJECTS: tl.constexpr,
    ENTERS: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    SLICES: tl.constexpr,
    TILE_D: tl.constexpr,
    ROWS_LEFT: tl.constexpr,
    PROJECT_N: tl.constexpr,
    QKV_N: tl.constexpr,
    OUT_N: tl.constexpr,
    GATE_UP_N: tl.constexpr,
    DOWN_N: tl.constexpr,
    HEAD_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_E: tl.constexpr,
    FEW: tl.constexpr,
):
    """Runs passes `first_pass` to `last_pass - 1`, of COUNT tokens a row: the first of them at position `start`.

    ENTERS: whether a pass begins with the projection of the newest codes' embeddings. PHASES: ALL, for PROGRAMS programs that are
    on the device at once; or the only one to run, of these layers, for programs that run in any order.
    """
    program = tl.program_id(0)
    dtype: tl.constexpr = buffers.x_TD.dtype.element_ty
    Y: tl.constexpr = HEADS * 2 * HALF
    X: tl.constexpr = Y + 2 * KV_HEADS * 2 * HALF
    WAITS: tl.constexpr = PHASES == ALL and PROGRAMS > 1
    counter_ptr = buffers.counter
    tokens = rows * COUNT
    # Indexes of rows are int64, and tensors under the interpreter too.
    zero = tl.full([], 0, tl.int64)
    around_ptr = addresses_ptr + LAYERS * PER_LAYER
    final_norm, project = tl.load(around_ptr), tl.load(around_ptr + 1)
    qkv = tl.load(addresses_ptr + first_layer * PER_LAYER + 1)
    for step in range(first_pass, last_pass):
        position = start + (step - first_pass) * COUNT
        group = position + COUNT - 1
        # An address is loaded long before its use: a program would arrive late if it waited for one.
        group_ptr = around_ptr + AROUND + (group - 1) * PER_GROUP
        head, embedding = tl.load(group_ptr), tl.load(group_ptr + 1)
        if ENTERS and (PHASES & PROJECT) != 0:
            entered = arrive(counter_ptr, program, PROGRAMS, WAITS)
            # Names of their own: what the loop assigns too would be carried through it.
            project_held = held_weights(program, _at(project, dtype), WIDTH, ENTRY, False, SLICES, PROJECT_N, TILE_D)
            wait(counter_ptr, entered, WAITS)
            product(
                program, project_held, (), buffers.entry_RE, ENTRY, tokens, eps, _at(project, dtype),
                buffers.x_TD, WIDTH, ENTRY, False, False, False, PROGRAMS, COMPILES, ROWS, SLICES, PROJECT_N, TILE_D,
                ROWS_LEFT,
            )  # fmt: skip
        for layer in range(first_layer, last_layer):
            layer_ptr = addresses_ptr + layer * PER_LAYER
            norm, query_norm, key_norm = tl.load(layer_ptr), tl.load(layer_ptr + 2), tl.load(layer_ptr + 3)
            out, mlp_norm, gate_up = tl.load(layer_ptr + 4), tl.load(layer_ptr + 5), tl.load(layer_ptr + 6)
            down, next_qkv = tl.load(layer_ptr + 7), tl.load(addresses_ptr + (layer + 1) % LAYERS * PER_LAYER + 1)
            if (PHASES & QKV) != 0:
                before = arrive(counter_ptr, program, PROGRAMS, WAITS)
                held = held_weights(program, _at(qkv, dtype), X, WIDTH, False, SLICES, QKV_N, TILE_D)
                # The tiles behind the first, and those of the next phase: the memory is idle while programs multiply.
                fetch_tiles(program, _at(qkv, dtype), 1, X, WIDTH, False, QKV_N, PROGRAMS, WAITS)
                fetch_tiles(program, _at(out, dtype), 0, WIDTH, Y, False, OUT_N, PROGRAMS, WAITS)
                norms = held_norm(_at(norm, dtype), WIDTH, SLICES, TILE_D)
                wait(counter_ptr, before, WAITS)
                product(
                    program, held, norms, buffers.x_TD, WIDTH, tokens, eps, _at(qkv, dtype), buffers.qkv_TX,
                    X, WIDTH, True, False, False, PROGRAMS, COMPILES, ROWS, SLICES, QKV_N, TILE_D, ROWS_LEFT,
                )  # fmt: skip
            if (PHASES & ATTEND) != 0:
                before = arrive(counter_ptr, program, PROGRAMS, WAITS)
            if (PHASES & OUT) != 0:
                # A phase ahead: attention leaves the memory idle.
                out_held = held_weights(program, _at(out, dtype), WIDTH, Y, False, SLICES, OUT_N, TILE_D)
                fetch_tiles(program, _at(gate_up, dtype), 0, INNER, WIDTH, True, GATE_UP_N, PROGRAMS, WAITS)
            if (PHASES & ATTEND) != 0:
                wait(counter_ptr, before, WAITS)
                cache = rows.to(tl.int64) * (GROUPS * KV_HEADS * 2 * HALF) * layer
                for task in range(program, rows * KV_HEADS, PROGRAMS):
                    attend_row(
                        zero + task // KV_HEADS, task % KV_HEADS, buffers.qkv_TX, _at(query_norm, dtype),
                        _at(key_norm, dtype), eps, cos_ptr, sin_ptr, position, buffers.key_cache + cache,
                        buffers.value_cache + cache, buffers.attended_TY, X, table_stride, scale,
                        COUNT, QK_NORM, GROUPS, HEADS, KV_HEADS, HALF, BLOCK_H, BLOCK_G, BLOCK_F,
                    )  # fmt: skip
            if (PHASES & OUT) != 0:
                before = arrive(counter_ptr, program, PROGRAMS, WAITS)
                fetch_tiles(program, _at(down, dtype), 0, WIDTH, INNER, False, DOWN_N, PROGRAMS, WAITS)
                wait(counter_ptr, before, WAITS)
                product(
                    program, out_held, (), buffers.attended_TY, Y, tokens, eps, _at(out, dtype),
                    buffers.x_TD, WIDTH, Y, False, False, True, PROGRAMS, COMPILES, ROWS, SLICES, OUT_N, TILE_D,
                    ROWS_LEFT,
                )  # fmt: skip
            if (PHASES & GATE_UP) != 0:
                before = arrive(counter_ptr, program, PROGRAMS, WAITS)
                held = held_weights(program, _at(gate_up, dtype), INNER, WIDTH, True, SLICES, GATE_UP_N, TILE_D)
                fetch_tiles(program, _at(next_qkv, dtype), 0, X, WIDTH, False, QKV_N, PROGRAMS, WAITS)
                norms = held_norm(_at(mlp_norm, dtype), WIDTH, SLICES, TILE_D)
                wait(counter_ptr, before, WAITS)
                product(
                    program, held, norms, buffers.x_TD, WIDTH, tokens, eps, _at(gate_up, dtype),
                    buffers.active_TI, INNER, WIDTH, True, True, False, PROGRAMS, COMPILES, ROWS, SLICES, GATE_UP_N,
                    TILE_D, ROWS_LEFT,
                )  # fmt: skip
            if (PHASES & DOWN) != 0:
                before = arrive(counter_ptr, program, PROGRAMS, WAITS)
                held = held_weights(program, _at(down, dtype), WIDTH, INNER, False, SLICES, DOWN_N, TILE_D)
                if layer + 1 == last_layer:
                    fetch_tiles(program, _at(head, dtype), 0, CODES, WIDTH, False, HEAD_N, PROGRAMS, WAITS)
                wait(counter_ptr, before, WAITS)
                product(
                    program, held, (), buffers.active_TI, INNER, tokens, eps, _at(down, dtype),
                    buffers.x_TD, WIDTH, INNER, False, False, True, PROGRAMS, COMPILES, ROWS, SLICES, DOWN_N, TILE_D,
                    ROWS_LEFT,
                )  # fmt: skip
            qkv = next_qkv
        if (PHASES & HEAD) != 0:
            before = arrive(counter_ptr, program, PROGRAMS, WAITS)
            held = held_weights(program, _at(head, dtype), CODES, WIDTH, False, SLICES, HEAD_N, TILE_D)
            norms = held_norm(_at(final_norm, dtype), WIDTH, SLICES, TILE_D)
            wait(counter_ptr, before, WAITS)
            # The newest token of each row.
            product(
                program, held, norms, buffers.x_TD + (COUNT - 1) * WIDTH, COUNT * WIDTH, rows, eps,
                _at(head, dtype), buffers.logits_RV, CODES, WIDTH, True, False, False, PROGRAMS, COMPILES, ROWS, SLICES,
                HEAD_N, TILE_D, ROWS_LEFT,
            )  # fmt: skip
        if (PHASES & CHOOSE) != 0:
            before = arrive(counter_ptr, program, PROGRAMS, WAITS)
            wait(counter_ptr, before, WAITS)
            for index in range(program, rows, PROGRAMS):
                _choose(
                    zero + index, buffers, draws, _at(embedding, dtype), group,
                    CODES, ENTRY, GROUPS, PROJECTS, SUMS, BLOCK_V, BLOCK_E, FEW,
                )  # fmt: skip


@triton.jit
def _choose(
    index,
    buffers,
    draws,
    embedding_ptr,
    group,
    CODES: tl.constexpr,
    ENTRY: tl.constexpr,
    GROUPS: tl.constexpr,
    PROJECTS: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_E: tl.constexpr,
    FEW: tl.constexpr,
):
    """Draws a row's code, and makes its embedding the next pass's input."""
    code = drawn_code(
        index, buffers.logits_RV + index * CODES, draws.rows_R, draws.position_R, draws.parameters, draws.spare_x,
        draws.spare_ids, group, CODES, BLOCK_V, FEW,
    )  # fmt: skip
    tl.store(buffers.codes + index * (GROUPS - 1) + group - 1, code)
    column_E = tl.arange(0, BLOCK_E)
    inside_E = column_E < ENTRY
    x_E = tl.load(embedding_ptr + code * ENTRY + column_E, mask=inside_E, other=0.0)
    if PROJECTS:
        tl.store(buffers.entry_RE + index * ENTRY + column_E, x_E, mask=inside_E)
    else:
        tl.store(buffers.x_TD + index * ENTRY + column_E, x_E, mask=inside_E)
    if SUMS:
        sum_ptr = buffers.sum_RE + index * ENTRY + column_E
        sum_E = tl.load(sum_ptr, mask=inside_E, other=0.0).to(tl.float32) + x_E.to(tl.float32)
        tl.store(sum_ptr, sum_E.to(x_E.dtype), mask=inside_E)


@triton.jit
def _at(address, dtype: tl.constexpr):
    """The pointer to a weight, aligned as vector loads need."""
    return tl.multiple_of(address.to(tl.pointer_type(dtype)), 16)
