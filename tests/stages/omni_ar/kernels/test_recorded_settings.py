"""Recorded launches have the settings of the device that they are recorded for, not of their tensors'."""

import pytest
import torch

pytest.importorskip("triton")

from omni.device.kernel_choice import kernels_of
from omni.kernels import VariantRecorder
from omni_ar.kernels import tuning
from omni_ar.kernels.attention import attend_decodes, attend_prompts
from omni_ar.kernels.linear import linear
from omni_ar.kernels.moe.settings import settings as moe_settings
from omni_ar.kernels.overlap import overlaps
from omni_ar.kernels.sampling.kernel import draw, sample
from omni_ar.kernels.sampling.state import SamplingState

pytestmark = pytest.mark.usefixtures("h200")

H200 = torch.device("cuda", 62)


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def integers(*shape: int) -> torch.Tensor:
    return empty(*shape, dtype=torch.int64)


def run_linear() -> None:
    linear(empty(1, 4096), empty(2048, 4096))


def run_decode() -> None:
    pages = empty(9, 16, 8, 128)
    finished_splits = empty(8192, dtype=torch.int32)
    attend_decodes(
        empty(1, 16, 128), pages, pages, integers(1, 8), integers(1), 128, finished_splits, empty(1, 16, 128)
    )


def run_prefill() -> None:
    pages = empty(9, 16, 8, 128)
    attend_prompts(empty(512, 16, 128), pages, pages, integers(4, 8), integers(1, 4), 0, empty(512, 16, 128))


def run_sample() -> None:
    state = SamplingState.allocate(lambda shape, dtype: empty(*shape, dtype=dtype), 2, 152_064, {})
    sample(empty(1, 152_064), state, integers(1), integers(2), True, 0, integers(1))


def run_draw() -> None:
    state = SamplingState.allocate(lambda shape, dtype: empty(*shape, dtype=dtype), 2, 2048, {})
    draw(empty(1, 2048), state, integers(1), integers(1), 0)


@pytest.mark.parametrize(
    ("run", "operation", "key", "size", "names"),
    [
        (run_linear, "linear", "linear-N2048-D4096-bfloat16", 1, {"block_n": "BLOCK_N", "block_d": "BLOCK_D"}),
        (run_decode, "attention_decode", "H16-K8-D128-B16-bf16", 1, {"block_n": "BLOCK_N", "splits": "SPLITS"}),
        (run_prefill, "attention_prefill", "H16-K8-D128-B16-bf16", 512, {"block_m": "BLOCK_M", "block_n": "BLOCK_N"}),
        (run_sample, "sampling", "V152064", 1, {"block": "BLOCK", "scan_warps": "num_warps"}),
        (run_draw, "sampling", "draw-2048", 1, {"warps": "num_warps"}),
    ],
    ids=["linear", "decode", "prefill", "sample", "draw"],
)
def test_launches_have_measured_settings(run, operation, key, size, names):
    recorder = VariantRecorder()
    with kernels_of(H200), recorder.recording():
        run()
    measured = tuning.shipped(operation, H200, key)[size]
    first = next(iter(recorder.variants))
    launched = dict(first.arguments) | dict(first.options)
    assert {name: launched[name] for name in names.values()} == {name: measured[each] for each, name in names.items()}


def test_experts_and_overlap_are_those_of_the_device():
    x, down = empty(1, 2048), empty(128, 2048, 768)
    with kernels_of(H200):
        measured, overlap = moe_settings(x, down, 8), overlaps(x)
    assert overlap
    assert not overlaps(x)
    assert measured != moe_settings(x, down, 8)
