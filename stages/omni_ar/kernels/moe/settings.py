"""The path and tiles for a number of rows."""

import msgspec
import torch
import triton
from torch import Tensor

from omni.device.kernel_choice import kernel_device
from omni_ar.kernels.tuning import cached_lookup, tuned

_FEW = 4


class FewProduct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tile of `i` (intermediate width) by `d` (width); a program of `warps` warps computes the outer size."""

    i: int
    d: int
    warps: int


class FewSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="rows", tag="few"):
    """Settings of the path without sorting: a program computes `gate.i` hidden values of a slot, then `down.d` outputs
    of all slots."""

    gate: FewProduct
    down: FewProduct


class GroupedProduct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tile of `n` outputs (of each of two matrices, for the gate) and `k` inputs.

    left: whether weights are the left operand. tma: whether the copy engine loads the weights, whose rows must be
    multiples of 16 bytes. halves: whether blocks that are at most half full take half a tile.
    """

    n: int
    k: int
    stages: int
    warps: int
    left: bool
    tma: bool
    halves: bool = False


class GroupedSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="rows", tag="grouped"
):
    """Settings of rows grouped by expert. block_m: rows of a block. overlap: whether products and sum start while the
    previous kernel still runs, on devices that support it."""

    block_m: int
    overlap: bool
    gate: GroupedProduct
    down: GroupedProduct


MoeSettings = FewSettings | GroupedSettings


def settings(x_TD: Tensor, down_EDI: Tensor, top_k: int, num_experts: int | None = None) -> MoeSettings:
    """Measured settings, or an estimate for a shape without measurements. num_experts: that the router chooses from, and on which
    an expert's rows depend; None if all are held."""
    held, width, intermediate = down_EDI.shape
    experts = held if num_experts is None else num_experts
    return _settings(kernel_device(x_TD), x_TD.shape[0], experts, top_k, width, intermediate, x_TD.dtype)


def shape_key(experts: int, top_k: int, width: int, intermediate: int, dtype: torch.dtype) -> str:
    """A shape's key in the table."""
    return f"E{experts}-K{top_k}-D{width}-I{intermediate}-{str(dtype).removeprefix('torch.')}"


def default_settings(
    tokens: int, experts: int, top_k: int, width: int, intermediate: int, dtype: torch.dtype
) -> MoeSettings:
    """An estimate: few rows separately; blocks as high as an expert's average number of rows, so that most experts need
    one block."""
    if tokens <= _FEW:
        gate_d, down_i = (min(limit, triton.next_power_of_2(n)) for limit, n in ((2048, width), (1024, intermediate)))
        return FewSettings(gate=FewProduct(i=2, d=gate_d, warps=4), down=FewProduct(d=1, i=down_i, warps=1))
    rows = tokens * top_k / experts
    if dtype == torch.float32:  # without tensor cores, products are in registers, so tiles are small
        return _grouped(16, (16, 32, 2, 4, False), (32, 32, 2, 4, False))
    if rows <= 8:
        return _grouped(16, (32, 128, 4, 4, True), (64, 128, 4, 4, True))
    if rows <= 24:
        return _grouped(32, (64, 128, 3, 4, True), (128, 128, 3, 4, True))
    if rows <= 64:
        return _grouped(64, (64, 64, 4, 4, False), (128, 64, 4, 4, False))
    return _grouped(128, (64, 64, 4, 8, False), (128, 64, 4, 8, False))


@cached_lookup
def _settings(
    device: torch.device, tokens: int, experts: int, top_k: int, width: int, intermediate: int, dtype: torch.dtype
) -> MoeSettings:
    measured = tuned("moe", device, shape_key(experts, top_k, width, intermediate, dtype), tokens, {})
    if not measured:
        return default_settings(tokens, experts, top_k, width, intermediate, dtype)
    found: MoeSettings = msgspec.convert(measured, MoeSettings)
    return found


def _grouped(block_m: int, *tiles: tuple[int, int, int, int, bool]) -> GroupedSettings:
    gate, down = (
        GroupedProduct(n=n, k=k, stages=stages, warps=warps, left=left, tma=False)
        for n, k, stages, warps, left in tiles
    )
    return GroupedSettings(block_m=block_m, overlap=False, gate=gate, down=down)
