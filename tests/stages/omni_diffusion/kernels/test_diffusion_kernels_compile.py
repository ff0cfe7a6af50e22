"""The kernels of denoisers and renderers are compiled for a Hopper GPU, which needs none."""

from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.support.gpu_compiler import GpuCompiler

pytestmark = pytest.mark.thorough

KERNELS = """
from omni_diffusion.kernels.alias_free.kernel import _alias_free_snake
from omni_diffusion.kernels.block_attention.kernel import _attend_blocks
from omni_diffusion.kernels.modulated_norm.kernel import _modulated_norm

SIZES = dict(HALF=3, COUNT=8, THREADS=128, WIDTH=64, ADD=True)
KERNELS = {
    _alias_free_snake: {},
    _modulated_norm: dict(WIDTH=1024, BLOCK=1024),
    _attend_blocks: dict(
        HEADS=16, FRAMES=24, BACK=True, AHEAD=True, BEFORE=True, PRECISION="tf32", BLOCK_F=32, BLOCK_W=64
    ),
}
TYPES = dict.fromkeys(("eps", "scale", *(f"tap{n}" for n in range(6))), "fp32")
TYPES |= dict.fromkeys((name for kernel in KERNELS for name in kernel.arg_names if name.endswith("_ptr")), "*fp32")
"""


def test_kernels_of_denoisers_compile_for_a_gpu(gpu_compiler: GpuCompiler, tmp_path: Path) -> None:
    gpu_compiler.compile(KERNELS, tmp_path)
