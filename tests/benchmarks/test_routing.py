"""Times do not count where rows crowd on a few experts: each stage's are counted by themselves."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from omni.checkpoint import Checkpoint
from omni_ar.layers.moe import SparseMoE
from tests.benchmarks.benchmark_script import BENCHMARKS


@pytest.fixture
def routing(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("bench.routing")
    importlib.import_module("bench.weights").forget()


@pytest.mark.parametrize(("counted", "void"), [(106, True), (107, False), (112, False), (117, False), (118, True)])
def test_a_routing_five_percent_off_uniform_is_void(routing: ModuleType, counted: float, void: bool) -> None:
    assert routing.is_void(routing.Routing(counted, 112.0)) is void


def test_a_dense_model_has_no_experts_to_crowd_on(routing: ModuleType) -> None:
    assert not routing.is_void(None)
    assert routing.routing_text(None) == ""


def test_uniform_choices_of_the_released_shape(routing: ModuleType) -> None:
    assert [round(routing.uniform_experts(128, 8, rows)) for rows in (1, 8, 32, 64)] == [8, 52, 112, 126]


def crowd(model: nn.Module) -> None:
    """All tokens choose the same experts: of logits that are equal, the same are the largest."""
    for module in model.modules():
        if isinstance(module, SparseMoE):
            module.gate.weight.data.zero_()


def test_a_stage_that_crowds_is_seen_beside_one_that_does_not(routing: ModuleType, tmp_path: Path) -> None:
    families, device = importlib.import_module("bench.handoff_families"), importlib.import_module("bench.device")
    importlib.import_module("shapes").SHAPES["tiny-omni"](tmp_path)
    setup = families.Setup(Checkpoint(tmp_path), device.open_timed("cpu"), "float32", graphs=False, tiny=True)
    family = families.OmniFamily(setup)
    bench = family.engine(graphs=False)
    crowd(bench.runners["talker"]._model)
    found = routing.count_experts(bench, family.rows, lambda: family.run(bench, "counted", short=True))
    bench.close()
    assert set(found) == {"thinker", "talker"}
    assert found["talker"] == (2, 3)
    assert routing.is_void(found["talker"])
    assert found["thinker"].counted > 2


def test_routing_can_be_observed(routing: ModuleType) -> None:
    moe = SparseMoE(16, 24, 8, 3, True).requires_grad_(False)
    first, second, third = (torch.randn(tokens, 16) for tokens in (4, 2, 5))
    seen: list[torch.Tensor] = []
    with routing.observe_routing(seen.append):
        moe(first)
        moe(second)
    moe(third)
    assert [expert.shape for expert in seen] == [(4, 3), (2, 3)]
    assert torch.equal(seen[0], moe.gate(first).topk(3).indices)
