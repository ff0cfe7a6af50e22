"""Where one kernel runs the passes of a frame, and its launch settings."""

import msgspec
import torch
from torch import Tensor

from omni_ar.kernels.tuning import looked_up_once, tuned

OPERATION = "frame_decoder"

MOST_ROWS = 32
"""The first pass has two tokens a row."""

MOST_CODES = 4096
"""A program holds a row of logits."""


class FrameSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """qkv, out, gate_up, down, head, project: outputs of a program's tile, by phase; of `gate_up` pairs of them. tile_d: inputs of
    a step, which the warps split into `slices`. rows_left: whether the left operand is the rows, instead of the weights.
    programs: 0 for as many as the device has multiprocessors."""

    qkv: int
    out: int
    gate_up: int
    down: int
    head: int
    project: int = 16
    tile_d: int
    slices: int
    rows_left: bool
    num_warps: int
    programs: int = 0


class FrameShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of the decoder of a frame. codes: of each group. entry: width of a code's embedding; a projection maps it to `width` if
    `projects`. groups: positions of a frame. qk_norm: whether query and key heads are normalized."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    codes: int
    entry: int
    groups: int
    qk_norm: bool
    projects: bool


def frame_settings(x_TD: Tensor, shape: FrameShape) -> FrameSettings | None:
    """Returns None for shapes, numbers of rows, dtypes and devices without a measurement. x_TD: `[2 * R, D]`."""
    rows = x_TD.shape[0] // 2
    if not 0 < rows <= MOST_ROWS or shape.codes > MOST_CODES:
        return None
    return _settings(x_TD.device, key(shape, x_TD.dtype), rows)


def key(shape: FrameShape, dtype: torch.dtype) -> str:
    """A shape's key in the table."""
    heads = f"H{shape.heads}-K{shape.kv_heads}-W{shape.head_dim}"
    ends = f"V{shape.codes}-E{shape.entry}-G{shape.groups}"
    return f"L{shape.layers}-D{shape.width}-{heads}-I{shape.inner}-{ends}-{str(dtype).removeprefix('torch.')}"


@looked_up_once
def _settings(device: torch.device, key: str, rows: int) -> FrameSettings | None:
    measured = tuned(OPERATION, device, key, rows, {})
    # Shapes whose passes are faster apart have no settings.
    return msgspec.convert(measured, FrameSettings) if measured else None
