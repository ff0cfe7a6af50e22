from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from omni.checkpoint import Checkpoint, Destination, fill_dummy, load_module
from omni.errors import CheckpointError

EXPERTS, INNER, WIDTH = 3, 4, 5


class Experts(nn.Module):
    """A gate, stacked experts, a norm with a bias, and one tied pair."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False, dtype=dtype)
        self.norm = nn.LayerNorm(WIDTH, dtype=dtype)
        self.experts_gate_up = nn.Parameter(torch.empty(EXPERTS, 2 * INNER, WIDTH, dtype=dtype))
        self.experts_down = nn.Parameter(torch.empty(EXPERTS, WIDTH, INNER, dtype=dtype))
        self.head = nn.Linear(WIDTH, EXPERTS, bias=False, dtype=dtype)
        self.head.weight = self.gate.weight
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("derived", torch.ones(2), persistent=False)


def rename(name: str) -> Destination | None:
    name = name.removeprefix("m.")
    parts = name.split(".")
    if parts[0] != "experts":
        return None if parts[0] == "unused" else Destination(name)
    expert, kind = int(parts[1]), parts[2]
    if kind == "down_proj":
        return Destination("experts_down", (expert,))
    return Destination("experts_gate_up", (expert, slice(0, INNER) if kind == "gate_proj" else slice(INNER, 2 * INNER)))


def published() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"m.gate.weight": (EXPERTS, WIDTH), "m.norm.weight": (WIDTH,), "m.norm.bias": (WIDTH,)}
    for expert in range(EXPERTS):
        shapes[f"m.experts.{expert}.gate_proj.weight"] = (INNER, WIDTH)
        shapes[f"m.experts.{expert}.up_proj.weight"] = (INNER, WIDTH)
        shapes[f"m.experts.{expert}.down_proj.weight"] = (WIDTH, INNER)
    weights = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return weights | {"m.count": torch.tensor([7, 8]), "m.unused.x": torch.zeros(1), "other.x": torch.zeros(1)}


def checkpoint(folder: Path, weights: dict[str, torch.Tensor]) -> Checkpoint:
    (folder / "config.json").write_text("{}")
    save_file(weights, folder / "model.safetensors")
    return Checkpoint(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fills_in_place(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = published()
    module = Experts(dtype)
    pointers = {name: p.data_ptr() for name, p in module.named_parameters()}
    load_module(module, checkpoint(tmp_path, weights), rename, prefixes=["m."])
    assert {name: p.data_ptr() for name, p in module.named_parameters()} == pointers
    gates = [weights[f"m.experts.{e}.gate_proj.weight"] for e in range(EXPERTS)]
    ups = [weights[f"m.experts.{e}.up_proj.weight"] for e in range(EXPERTS)]
    downs = [weights[f"m.experts.{e}.down_proj.weight"] for e in range(EXPERTS)]
    assert torch.equal(module.experts_gate_up, torch.cat([torch.stack(gates), torch.stack(ups)], 1).to(dtype))
    assert torch.equal(module.experts_down, torch.stack(downs).to(dtype))
    for name in ("gate.weight", "norm.weight", "norm.bias"):
        assert torch.equal(module.get_parameter(name), weights[f"m.{name}"].to(dtype))
    assert module.head.weight is module.gate.weight
    assert module.get_buffer("count").tolist() == [7, 8]


def test_a_module_built_in_inference_mode_loads(tmp_path: Path) -> None:
    with torch.inference_mode():
        module = Experts()
    load_module(module, checkpoint(tmp_path, published()), rename, prefixes=["m."])
    assert module.get_buffer("count").tolist() == [7, 8]


def test_a_wrong_shape_is_named_and_nothing_is_copied(tmp_path: Path) -> None:
    module = Experts()
    fill_dummy(module, 0)
    before = {name: p.clone() for name, p in module.named_parameters()}
    weights = published() | {"m.experts.2.up_proj.weight": torch.zeros(INNER, WIDTH + 1)}
    with pytest.raises(CheckpointError, match=r"wrong tensor shape: expected \(4, 5\), found \(4, 6\)") as caught:
        load_module(module, checkpoint(tmp_path, weights), rename, prefixes=["m."])
    assert caught.value.field == "m.experts.2.up_proj.weight"
    assert all(torch.equal(p, before[name]) for name, p in module.named_parameters())


@pytest.mark.parametrize(
    ("lost", "parameter"),
    [
        ("m.gate.weight", "gate.weight"),
        ("m.norm.bias", "norm.bias"),
        ("m.experts.1.down_proj.weight", r"experts_down\[1\]"),
        ("m.experts.2.up_proj.weight", r"experts_gate_up\[2\]"),
        ("m.count", "count"),
    ],
)
def test_a_parameter_that_nothing_fills_is_named(tmp_path: Path, lost: str, parameter: str) -> None:
    weights = published()
    del weights[lost]
    with pytest.raises(CheckpointError, match=f"no weights for .*{parameter}"):
        load_module(Experts(), checkpoint(tmp_path, weights), rename, prefixes=["m."])


def test_a_weight_for_either_name_fills_a_tied_parameter(tmp_path: Path) -> None:
    weights = published()
    weights["m.head.weight"] = weights.pop("m.gate.weight")
    module = Experts()
    load_module(module, checkpoint(tmp_path, weights), rename, prefixes=["m."])
    assert torch.equal(module.gate.weight, weights["m.head.weight"])


def test_an_unexpected_weight_is_named(tmp_path: Path) -> None:
    weights = published() | {"m.extra.weight": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=r"unexpected.*'extra\.weight'") as caught:
        load_module(Experts(), checkpoint(tmp_path, weights), rename, prefixes=["m."])
    assert caught.value.field == "m.extra.weight"


def test_an_expert_too_many(tmp_path: Path) -> None:
    weights = published() | {"m.experts.3.down_proj.weight": torch.zeros(WIDTH, INNER)}
    with pytest.raises(CheckpointError, match="no place in parameter 'experts_down'"):
        load_module(Experts(), checkpoint(tmp_path, weights), rename, prefixes=["m."])


def test_two_weights_for_one_place(tmp_path: Path) -> None:
    weights = published() | {"m.m.norm.bias": torch.zeros(WIDTH)}
    with pytest.raises(CheckpointError, match=r"norm\.bias: goes where"):
        load_module(
            Experts(), checkpoint(tmp_path, weights), lambda n: rename(n.replace("m.m.", "m.")), prefixes=["m."]
        )


def test_dummy_weights_follow_the_seed() -> None:
    first, second, other = Experts(), Experts(), Experts()
    fill_dummy(first, 1)
    fill_dummy(second, 1)
    fill_dummy(other, 2)
    assert torch.equal(first.experts_down, second.experts_down)
    assert not torch.equal(first.experts_down, other.experts_down)
    assert not torch.equal(first.experts_down[0], first.experts_down[1])
    assert torch.equal(first.norm.weight, torch.ones(WIDTH))
    assert torch.equal(first.norm.bias, torch.zeros(WIDTH))


def test_dummy_matrices_have_a_deviation_of_two_hundredths() -> None:
    module = nn.Linear(400, 400)
    fill_dummy(module, 0)
    assert module.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert module.weight.mean().item() == pytest.approx(0.0, abs=3e-4)


def test_an_initializer_of_ones_own() -> None:
    module = Experts(torch.bfloat16)
    names: list[str] = []

    def init(name: str, tensor: torch.Tensor, generator: torch.Generator) -> None:
        names.append(name)
        tensor.fill_(len(names))

    fill_dummy(module, 0, init)
    assert sorted(names) == sorted(name for name, _ in module.named_parameters())
    assert module.gate.weight.unique().numel() == 1
