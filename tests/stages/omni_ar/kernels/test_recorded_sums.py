"""What layers of a rank launch where ranks sum through each other's memory, as it is recorded before there are other ranks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from omni.checkpoint import Cut
from omni.device.kernel_choice import kernels_of
from omni.kernels import VariantRecorder
from omni.parallel import SilentCommunicator
from omni_ar.kernels.norm import residual_sum
from omni_ar.layers import GatedMLP, RMSNorm, SparseMoE
from omni_ar.layers.linear import RowLinear
from omni_ar.layers.parallel import partitioned
from omni_ar.layers.vocabulary import VocabEmbedding

pytestmark = pytest.mark.usefixtures("h200")

RANKS = SilentCommunicator(1, 2)
WIDTH = 2048
FACTORY: Any = {"device": "meta", "dtype": torch.bfloat16}


def recorded(run: Callable[[], object]) -> list[tuple[str, dict[str, object]]]:
    """Name and constants of each kernel, in the order of their launches."""
    recorder = VariantRecorder()
    with kernels_of(torch.device("cuda", 62)), recorder.recording():
        run()
    return [(variant.kernel.split(":")[1], dict(variant.arguments)) for variant in recorder.variants]


def attended(rows: int) -> Any:
    """The output of an attention layer of 32 heads: a part of the sum over ranks."""
    return RowLinear(Cut(1, 2048, 4096, 4096), WIDTH, RANKS, **FACTORY).in_parts(stream(rows))


def stream(rows: int) -> Tensor:
    return torch.empty(rows, WIDTH, **FACTORY)


@pytest.mark.parametrize(("rows", "product", "parts"), [(1, "_few_rows", 1), (8, "some_rows", 1), (64, "some_rows", 4)])
def test_the_norm_sums_its_addend_over_ranks(rows: int, product: str, parts: int) -> None:
    norm = RMSNorm(WIDTH, 1e-6, **FACTORY)
    launches = recorded(lambda: norm.add(stream(rows), attended(rows)))
    assert [name for name, _ in launches] == [product, "_rms_norm"], "the product, and everything else"
    constants = launches[1][1]
    assert {name: constants[name] for name in ("ADD", "NORM", "PARTS", "RANK", "SIZE")} == {
        "ADD": True,
        "NORM": True,
        "PARTS": parts,
        "RANK": 1,
        "SIZE": 2,
    }


def test_a_sum_without_a_norm_is_one_launch() -> None:
    (_, (name, constants)) = recorded(lambda: residual_sum(stream(1), attended(1)))
    assert (name, constants["NORM"], constants["SIZE"]) == ("_rms_norm", False, 2)


@pytest.mark.parametrize("rows", [1, 8, 32])
@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_no_launch_of_a_feed_forward_is_a_sum_alone(kind: str, rows: int) -> None:
    norm = RMSNorm(WIDTH, 1e-6, **FACTORY)
    with partitioned(RANKS):
        experts = SparseMoE(WIDTH, 768, 128, 8, True, **FACTORY)
        mlp = experts if kind == "experts" else GatedMLP(WIDTH, 6144, **FACTORY)

    def run() -> None:
        x_TD = stream(rows)
        for _ in range(2):
            delta, x_TD = mlp.fused_mlp(norm, x_TD, attended(rows))
            norm.add(x_TD, delta)

    launches = recorded(run)
    norms = [constants for name, constants in launches if name == "_rms_norm"]
    assert norms
    assert all(constants["SIZE"] == 2 for constants in norms)
    assert "_all_reduce" not in dict(launches)


def test_a_large_sum_is_not_through_memory() -> None:
    launches = recorded(lambda: RMSNorm(WIDTH, 1e-6, **FACTORY).add(stream(129), attended(129)))
    assert [constants["SIZE"] for name, constants in launches if name == "_rms_norm"] == [1]


def test_other_sums_are_recorded_too() -> None:
    embedding = VocabEmbedding(1000, WIDTH, RANKS, **FACTORY)
    launches = recorded(lambda: embedding(torch.empty(8, dtype=torch.int64, device="meta")))
    assert [name for name, _ in launches] == ["_all_reduce"]
