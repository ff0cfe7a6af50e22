"""Launch settings of the sampling kernels. They are the same for any number of rows; otherwise sums would round
differently, and a row's tokens would depend on its neighbours."""

import msgspec
import torch

from omni_ar.kernels.tuning import cached_lookup, tuned


class RowSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a program that holds a row."""

    warps: int


class WideSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for a wide vocabulary. block, tile: ids of a program and of a tile. nucleus: tiles that are
    searched first for the ids that top-p keeps. scan_registers: maximum registers of a thread; 0 leaves them to the
    compiler."""

    block: int
    tile: int
    nucleus: int
    scan_warps: int
    scan_registers: int
    finish_warps: int


_WIDE = WideSettings(block=2048, tile=128, nucleus=256, scan_warps=4, scan_registers=64, finish_warps=8)


@cached_lookup
def row_settings(device: torch.device, operation: str, block: int) -> RowSettings:
    """operation: `sample` or `draw`. block: block size of a program."""
    measured = tuned("sampling", device, f"{operation}-{block}", 1, {})
    return msgspec.convert(measured, RowSettings) if measured else RowSettings(warps=min(max(block // 512, 1), 8))


@cached_lookup
def wide_settings(device: torch.device, vocab: int) -> WideSettings:
    measured = tuned("sampling", device, f"V{vocab}", 1, {})
    return msgspec.convert(measured, WideSettings) if measured else _WIDE
