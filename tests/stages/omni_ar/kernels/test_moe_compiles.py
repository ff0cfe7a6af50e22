"""The kernels of a mixture with a part of its experts are compiled for a Hopper GPU, without one."""

from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.support.gpu_compiler import GpuCompiler

pytestmark = pytest.mark.thorough

KERNELS = """
from omni_ar.kernels.moe.combine import _combine_kernel
from omni_ar.kernels.moe.few import _few_down, _few_gate_up
from omni_ar.kernels.moe.grouping import _count_kernel, _place_kernel

SIZES = dict(D=256, I=64, E=8, HELD=4, K=3, E_PAD=8, NORM=True, OVERLAP=True)
FEW = dict(SHARED=96, BLOCK_I=2, BLOCK_D=128)
GROUPS = dict(BLOCK_T=8, BLOCK_C=32, BLOCK_M=16)
KERNELS = {
    _few_gate_up: FEW,
    _few_down: FEW | dict(SLOTS_PAD=8, BLOCK_D=1, BLOCK_I=64),
    _count_kernel: GROUPS,
    _place_kernel: GROUPS | dict(COUNTED=True),
    _combine_kernel: dict(SHARED=True, K_PAD=4, BLOCK_D=256),
}
TYPES = dict.fromkeys(("expert_ptr", "count_ptr", "pair_ptr", "block_ptr"), "*i32") | {"weight_ptr": "*fp32"}
"""


def test_kernels_of_some_experts_compile_for_a_gpu(gpu_compiler: GpuCompiler, tmp_path: Path) -> None:
    gpu_compiler.compile(KERNELS, tmp_path)
