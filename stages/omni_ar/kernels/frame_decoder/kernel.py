"""Launches of the passes of a frame.

Shape legend: see `passes`.
"""

import functools
from typing import Any

import torch
import triton
from torch import Tensor

from omni_ar.kernels.frame.attend import LEAST_F, LEAST_G
from omni_ar.kernels.frame_decoder import passes
from omni_ar.kernels.frame_decoder.passes import Draws, FrameBuffers, run_passes
from omni_ar.kernels.frame_decoder.settings import FrameSettings, FrameShape
from omni_ar.kernels.frame_decoder.weights import AddressTable
from omni_ar.kernels.sampling.kernel import FEW, code_pointers, spare_memory
from omni_ar.kernels.sampling.state import CodeDraws

# Rows of the left operand, and columns of the right one, of one matrix instruction.
_LEFT, _RIGHT = 16, 8
_LAYER_PHASES = (passes.QKV, passes.ATTEND, passes.OUT, passes.GATE_UP, passes.DOWN)


def decode_frames(
    first_TD: Tensor,
    sum_RD: Tensor | None,
    tables_GW: tuple[Tensor, Tensor],
    shape: FrameShape,
    table: AddressTable,
    eps: float,
    draws: CodeDraws,
    settings: FrameSettings,
    *,
    in_turn: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """in_turn: programs of each launch, which runs one phase of one layer; 0 for one launch of all passes behind the first, whose
    programs wait for one another."""
    rows = first_TD.shape[0] // 2
    buffers, drawn = _buffers(first_TD, sum_RD, shape, table), _draws(draws, first_TD, rows)
    launch = functools.partial(_launch, (table.table, buffers, drawn, *tables_GW), rows, shape, eps, settings, in_turn)
    launch(0, 2, 0, 1)
    if shape.groups > 2:
        launch(2, 1, 1, shape.groups - 1)
    return buffers.codes, None if sum_RD is None else buffers.sum_RE


def _launch(
    memory: tuple[Any, ...],
    rows: int,
    shape: FrameShape,
    eps: float,
    settings: FrameSettings,
    in_turn: int,
    start: int,
    count: int,
    first_pass: int,
    last_pass: int,
) -> None:
    """Passes of `count` tokens a row; `start`: position of the first."""
    options = _sizes(shape, settings, rows, count, sums=memory[1].sum_RE is not memory[1].x_TD)
    stride = memory[3].stride(0)

    def run(phase: Any, programs: int, start: int, passes: tuple[int, int], layers: tuple[int, int]) -> None:
        run_passes[(programs,)](
            *memory,
            stride,
            rows,
            start,
            *passes,
            *layers,
            eps,
            shape.head_dim**-0.5,
            PHASES=phase,
            PROGRAMS=programs,
            COMPILES=isinstance(run_passes, triton.JITFunction),
            launch_cooperative_grid=not in_turn and programs > 1,
            **options,
        )

    if not in_turn:
        programs = settings.programs or multiprocessors(memory[0].device)
        run(passes.ALL, programs, start, (first_pass, last_pass), (0, shape.layers))
        return
    for step in range(first_pass, last_pass):
        one = functools.partial(run, programs=in_turn, start=start + step - first_pass, passes=(step, step + 1))
        if shape.projects and count == 1:
            one(passes.PROJECT, layers=(0, 0))
        for layer in range(shape.layers):
            for phase in _LAYER_PHASES:
                one(phase, layers=(layer, layer + 1))
        one(passes.HEAD, layers=(0, 0))
        one(passes.CHOOSE, layers=(0, 0))


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """1 on the CPU, whose interpreter runs one program after another."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _sizes(shape: FrameShape, settings: FrameSettings, rows: int, count: int, *, sums: bool) -> dict[str, Any]:
    """Compile-time constants and options of a launch."""
    power = triton.next_power_of_2
    return {
        "COUNT": count,
        "LAYERS": shape.layers,
        "WIDTH": shape.width,
        "HEADS": shape.heads,
        "KV_HEADS": shape.kv_heads,
        "HALF": shape.head_dim // 2,
        "INNER": shape.inner,
        "CODES": shape.codes,
        "ENTRY": shape.entry,
        "GROUPS": shape.groups,
        "QK_NORM": shape.qk_norm,
        "PROJECTS": shape.projects,
        "ENTERS": shape.projects and count == 1,
        "SUMS": sums,
        "ROWS": max(power(rows * count), _LEFT if settings.rows_left else _RIGHT),
        "SLICES": settings.slices,
        "TILE_D": settings.tile_d,
        "ROWS_LEFT": settings.rows_left,
        "PROJECT_N": settings.project,
        "QKV_N": settings.qkv,
        "OUT_N": settings.out,
        "GATE_UP_N": settings.gate_up,
        "DOWN_N": settings.down,
        "HEAD_N": settings.head,
        "BLOCK_H": power(shape.heads // shape.kv_heads),
        "BLOCK_G": max(power(shape.groups), LEAST_G),
        "BLOCK_F": max(power(shape.head_dim // 2), LEAST_F),
        "BLOCK_V": max(power(shape.codes), 16),
        "BLOCK_E": power(shape.entry),
        "FEW": FEW,
        "num_warps": settings.num_warps,
        # The barriers are between the loops that could be pipelined.
        "num_stages": 1,
    }


def _buffers(first_TD: Tensor, sum_RD: Tensor | None, shape: FrameShape, table: AddressTable) -> FrameBuffers:
    tokens = first_TD.shape[0]
    rows, new = tokens // 2, first_TD.new_empty
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    x_TD = first_TD.clone(memory_format=torch.contiguous_format)
    frames = (shape.layers, rows, shape.groups, shape.kv_heads, shape.head_dim)
    return FrameBuffers(
        x_TD=x_TD,
        qkv_TX=new(tokens, queries + 2 * keys),
        attended_TY=new(tokens, queries),
        active_TI=new(tokens, shape.inner),
        logits_RV=new(rows, shape.codes),
        entry_RE=new(rows, shape.entry) if shape.projects else x_TD,
        sum_RE=x_TD if sum_RD is None else sum_RD.clone(memory_format=torch.contiguous_format),
        key_cache=new(frames),
        value_cache=new(frames),
        codes=new(rows, shape.groups - 1, dtype=torch.int64),
        counter=table.counter,
    )


def _draws(draws: CodeDraws, first_TD: Tensor, rows: int) -> Draws:
    return Draws(draws.rows_R, draws.position_R, code_pointers(draws.state), *spare_memory(first_TD, rows, FEW))
