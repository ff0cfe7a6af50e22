"""The attention kernels are compiled for a Hopper GPU, without one."""

from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.support.gpu_compiler import GpuCompiler

pytestmark = pytest.mark.thorough

KERNELS = """
from omni_ar.kernels.attention.decode_kernel import _decode
from omni_ar.kernels.attention.decode_splits import _reduce
from omni_ar.kernels.attention.prefill_kernel import _prefill

HEADS = dict(KV_HEADS=2, GROUP=4, HEAD_DIM=64, BLOCK_SIZE=16, BLOCK_D=64, BLOCK_N=32)
STRIDES = dict(Q_STRIDE_T=512, Q_STRIDE_H=64)
TOGETHER = dict(POSITIONS=3, TOGETHER=2)
SPLITS = dict(BLOCK_G=16, SUM_G=8, SPLITS=4, FUSED=True, OVERLAP=False) | TOGETHER
KERNELS = {
    _decode: HEADS | STRIDES | SPLITS,
    _reduce: dict(HEADS=8, HEAD_DIM=64, BLOCK_P=2, BLOCK_D=64, BLOCK_N=32, SPLITS=4, AT_ONCE=4, OVERLAP=False) | TOGETHER,
    _prefill: HEADS | STRIDES | dict(BLOCK_P=64, BLOCK_M=64),
}
SIZES = dict(WINDOW=100, SOFTCAP=30.0, ALIBI=True, SINKS=True)
TYPES = {"table_ptr": "*i64", "rows_ptr": "*i64", "lengths_ptr": "*i64", "finished_splits_ptr": "*i32", "scale": "fp32"}
TYPES |= dict.fromkeys(("partial_ptr", "lse_ptr", "slopes_ptr"), "*fp32")
"""


def test_features_compile_for_a_gpu(gpu_compiler: GpuCompiler, tmp_path: Path) -> None:
    gpu_compiler.compile(KERNELS, tmp_path)
