"""Kernels of transformers of vocoders are compiled for a Hopper GPU, which needs none."""

from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.support.gpu_compiler import GpuCompiler

pytestmark = pytest.mark.thorough

KERNELS = """
from omni_vocoder.kernels.residual_norm.kernel import _residual_norm
from omni_vocoder.kernels.window_attention.kernel import _attend_window

SIZES = dict(HALF=32, BLOCK_F=32, BLOCK_E=64)
KERNELS = {
    _residual_norm: dict(ADD=True, WIDTH=1000, BLOCK=1024),
    _attend_window: dict(
        QUERY_STRIDE=1024, KEY_STRIDE=1024, VALUE_STRIDE=1024, HEADS=16, GROUP=1, PAST=71, BLOCK_M=16, BLOCK_N=BLOCK_N
    ),
}
OPTIONS = dict(num_warps=4, num_stages=1)
TYPES = dict.fromkeys((name for kernel in KERNELS for name in kernel.arg_names if name.endswith("_ptr")), DTYPE)
TYPES |= dict(scale="fp32", eps="fp32", before_ptr="*i64")
"""


@pytest.mark.parametrize(("dtype", "keys"), [("*bf16", 64), ("*fp32", 32)])
def test_kernels_of_transformers_compile_for_a_gpu(
    dtype: str, keys: int, gpu_compiler: GpuCompiler, tmp_path: Path
) -> None:
    gpu_compiler.compile(f"DTYPE, BLOCK_N = {dtype!r}, {keys}\n{KERNELS}", tmp_path)
