"""Kernels of one warp are compiled for a Hopper GPU, without one: all their tiles have one layout, so no data moves through shared
memory, which would be a wait in each of a frame's layers."""

from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.support.gpu_compiler import GpuCompiler
from tests.support.tiers import SLOW, few

KERNELS = """
from omni_ar.kernels.frame.kernel import _attend_frame
from omni_ar.kernels.linear.streamed import _few_rows
from omni_ar.kernels.rope.kernel import _qk_norm_rope_write

HEADS = dict(HEADS=4, KV_HEADS=2, HALF=64)
KERNELS = {
    _attend_frame: HEADS | dict(COUNT=COUNT, NORM=NORM, GROUPS=8, BLOCKS=2, BLOCK_F=64),
    _few_rows: dict(OUTPUTS=64, WIDTH=512, ROWS=COUNT, NORM=NORM, ADD=NORM, GATED=True, BIAS=False, BLOCK_N=2, BLOCK_D=512),
    _qk_norm_rope_write: HEADS | dict(NORM=NORM, PREFETCH_BYTES=0, BLOCK_H=4, BLOCK_F=64),
}
WITHOUT_SHARED = set(KERNELS)
OPTIONS = dict(num_warps=1)
SIZES = dict(OVERLAP=True)
TYPES = {"eps": "fp32", "scale": "fp32", "slots_ptr": "*i64"}
"""


@pytest.mark.parametrize(("count", "normed"), few(1, [(1, True), (2, False)], SLOW))
def test_no_data_moves_between_threads_but_sums(
    gpu_compiler: GpuCompiler, tmp_path: Path, count: int, normed: bool
) -> None:
    gpu_compiler.compile(f"COUNT, NORM = {count}, {normed}\n{KERNELS}", tmp_path)
