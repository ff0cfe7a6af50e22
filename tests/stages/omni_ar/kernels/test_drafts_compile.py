"""The kernels of drafts are compiled for a Hopper GPU, without one."""

from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.support.gpu_compiler import GpuCompiler

pytestmark = pytest.mark.thorough

KERNELS = """
from omni_ar.kernels.ngram.kernel import _propose
from omni_ar.kernels.sampling.finish import finish
from omni_ar.kernels.sampling.kernel import Pointers
from omni_ar.kernels.sampling.scan import scan
from omni_ar.kernels.sampling.single import sample_row
from omni_ar.kernels.step.draft_accept import accept_draft_rows, record_row
from omni_ar.kernels.step.draft_prepare import prepare_positions

FLOATS = ("temperature", "min_p", "top_n_sigma", "repetition_penalty", "frequency_penalty", "presence_penalty", "biases")
OF_STATE = dict.fromkeys(FLOATS, "*fp32") | {"top_p": "*fp64", "seen": "*u8", "forbidden": "*u8", "counts": "*i32"}
SIZES = dict(POSITIONS=4, DRAFTS=3, RING=3, WIDTH=8, SEEN=1001, TEXT=4097, BY_ROW=True, TILE=128)
SIZES |= dict(ADAPTIVE=True, HAS_COSTS=True, RAN=True)
KERNELS = {
    _propose: dict(FEWEST=2, MOST=4, BLOCK=1024),
    prepare_positions: dict(AXES=3, TABLE=64, BLOCK_SIZE=16, BLOCK_R=128),
    accept_draft_rows: dict(BLOCK_R=32),
    record_row: {},
    sample_row: dict(BLOCK=1024, FEW=128),
    scan: dict(BLOCK=2048),
    finish: dict(PER_BLOCK=16, PADDED_BLOCKS=64, PADDED_TILES=1024, NUCLEUS=256, CAPACITY=4096, FEW=128),
}
POINTERS = {name for kernel in KERNELS for name in kernel.arg_names if name.endswith("_ptr")}
TYPES = dict.fromkeys(POINTERS, "*i64") | {
    "parameters": Pointers(*(OF_STATE.get(name, "*i64") for name in Pointers._fields)),
    "logits_ptr": "*bf16",
    **dict.fromkeys(("text_ptr", "counts_ptr", "scratch_ids_ptr", "chosen_ptr"), "*i32"),
    **dict.fromkeys(("work_ptr", "tiles_ptr", "weight_ptr", "scratch_x_ptr"), "*fp32"),
    "seen_ptr": "*u8",
}
"""


SMALL = {
    "MOST=4, BLOCK=1024": "MOST=4, BLOCK=128",
    "BLOCK=1024, FEW=128": "BLOCK=128, FEW=32",
    "BLOCK=2048": "BLOCK=256",
    "PADDED_BLOCKS=64, PADDED_TILES=1024, NUCLEUS=256, CAPACITY=4096, FEW=128": (
        "PADDED_BLOCKS=16, PADDED_TILES=64, NUCLEUS=32, CAPACITY=128, FEW=32"
    ),
}
"""Tiles of the launched sizes, and smaller ones, which the compiler unrolls in a third of the time."""


def test_kernels_compile_for_a_gpu(gpu_compiler: GpuCompiler, tmp_path: Path) -> None:
    small = KERNELS
    for launched, smaller in SMALL.items():
        assert small.count(launched) == 1
        small = small.replace(launched, smaller)
    gpu_compiler.compile(small, tmp_path)


@pytest.mark.slow
def test_kernels_of_the_launched_sizes_compile_for_a_gpu(gpu_compiler: GpuCompiler, tmp_path: Path) -> None:
    gpu_compiler.compile(KERNELS, tmp_path)


@pytest.mark.slow
def test_kernels_of_one_position_compile_for_a_gpu(gpu_compiler: GpuCompiler, tmp_path: Path) -> None:
    """For steps in which no row drafts, and without a rate."""
    one = KERNELS.replace("POSITIONS=4", "POSITIONS=1")
    one = one.replace("ADAPTIVE=True, HAS_COSTS=True, RAN=True", "ADAPTIVE=False, HAS_COSTS=False, RAN=False")
    assert one != KERNELS
    gpu_compiler.compile(one, tmp_path)


@pytest.mark.slow
def test_sampling_without_drafts_compiles_for_a_gpu(gpu_compiler: GpuCompiler, tmp_path: Path) -> None:
    sampling = KERNELS.partition("KERNELS = {")[0] + "KERNELS = {" + KERNELS[KERNELS.index("\n    sample_row: dict") :]
    gpu_compiler.compile(sampling.replace("DRAFTS=3", "DRAFTS=0"), tmp_path)
