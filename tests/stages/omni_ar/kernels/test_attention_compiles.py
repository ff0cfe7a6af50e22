"""The attention kernels are compiled for a Hopper GPU, which needs none: the interpreter runs code that the compiler refuses."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

from tests.support.entry_points import REPOSITORY

pytestmark = pytest.mark.thorough

COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from omni_ar.kernels.attention.decode_kernel import _decode, _reduce
from omni_ar.kernels.attention.prefill_kernel import _prefill

HEADS = dict(KV_HEADS=2, GROUP=4, HEAD_DIM=64, BLOCK_SIZE=16, BLOCK_D=64, BLOCK_N=32)
STRIDES = dict(Q_STRIDE_T=512, Q_STRIDE_H=64)
SPLITS = dict(BLOCK_G=16, SUM_G=4, SPLITS=4, FUSED=True, OVERLAP=False)
KERNELS = {
    _decode: HEADS | STRIDES | SPLITS,
    _reduce: dict(HEADS=8, HEAD_DIM=64, BLOCK_D=64, BLOCK_N=32, SPLITS=4, AT_ONCE=4),
    _prefill: HEADS | STRIDES | dict(BLOCK_P=64, BLOCK_M=64),
}
TYPES = {"table_ptr": "*i64", "rows_ptr": "*i64", "lengths_ptr": "*i64", "arrivals_ptr": "*i32", "scale": "fp32"}
TYPES |= dict.fromkeys(("partial_ptr", "lse_ptr", "slopes_ptr"), "*fp32")


FEATURES = dict(WINDOW=100, SOFTCAP=30.0, ALIBI=True, SINKS=True)

for kernel, sizes in KERNELS.items():
    constants = {name: value for name, value in (sizes | FEATURES).items() if name in kernel.arg_names}
    signature = {
        name: "constexpr" if name in constants else TYPES.get(name, "*bf16" if name.endswith("_ptr") else "i32")
        for name in kernel.arg_names
    }
    indexed = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=indexed)
    assert ".entry" in compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
"""


def test_features_compile_for_a_gpu(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'stages'}"}
    (tmp_path / "compile_all.py").write_text(COMPILE)
    command = [sys.executable, str(tmp_path / "compile_all.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
