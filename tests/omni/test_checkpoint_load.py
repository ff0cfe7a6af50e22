from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from omni.checkpoint import Checkpoint, Destination, StackedWeights, fill_dummy, load_module, stream
from omni.device import open_device
from omni.errors import CheckpointError

EXPERTS, INNER, WIDTH = 3, 4, 5


class Experts(nn.Module, StackedWeights):
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

    def stacked_weights(self, name: str) -> dict[str, Destination]:
        destinations: dict[str, Destination] = {}
        gate, up = slice(0, INNER), slice(INNER, 2 * INNER)
        for expert in range(EXPERTS):
            destinations[f"experts.{expert}.gate_proj.weight"] = Destination("experts_gate_up", (expert, gate))
            destinations[f"experts.{expert}.up_proj.weight"] = Destination("experts_gate_up", (expert, up))
            destinations[f"experts.{expert}.down_proj.weight"] = Destination("experts_down", (expert,))
        return destinations


PREFIXES = {"m.": ""}


def published() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"m.gate.weight": (EXPERTS, WIDTH), "m.norm.weight": (WIDTH,), "m.norm.bias": (WIDTH,)}
    for expert in range(EXPERTS):
        shapes[f"m.experts.{expert}.gate_proj.weight"] = (INNER, WIDTH)
        shapes[f"m.experts.{expert}.up_proj.weight"] = (INNER, WIDTH)
        shapes[f"m.experts.{expert}.down_proj.weight"] = (WIDTH, INNER)
    weights = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return weights | {"m.count": torch.tensor([7, 8]), "other.x": torch.zeros(1)}


def checkpoint(folder: Path, weights: dict[str, torch.Tensor]) -> Checkpoint:
    (folder / "config.json").write_text("{}")
    save_file(weights, folder / "model.safetensors")
    return Checkpoint(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fills_in_place(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = published()
    module = Experts(dtype)
    pointers = {name: p.data_ptr() for name, p in module.named_parameters()}
    load_module(module, checkpoint(tmp_path, weights), PREFIXES)
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
    load_module(module, checkpoint(tmp_path, published()), PREFIXES)
    assert module.get_buffer("count").tolist() == [7, 8]


def test_a_wrong_shape_is_named_and_nothing_is_copied(tmp_path: Path) -> None:
    module = Experts()
    fill_dummy(module, 0)
    before = {name: p.clone() for name, p in module.named_parameters()}
    weights = published() | {"m.experts.2.up_proj.weight": torch.zeros(INNER, WIDTH + 1)}
    with pytest.raises(CheckpointError, match=r"wrong tensor shape: expected \(4, 5\), found \(4, 6\)") as caught:
        load_module(module, checkpoint(tmp_path, weights), PREFIXES)
    assert caught.value.field == "m.experts.2.up_proj.weight"
    assert all(torch.equal(p, before[name]) for name, p in module.named_parameters())


@pytest.mark.parametrize(
    ("lost", "parameter"),
    [
        ("m.gate.weight", "gate.weight"),
        ("m.norm.bias", "norm.bias"),
        ("m.experts.1.down_proj.weight", r"experts\.1\.down_proj\.weight"),
        ("m.experts.2.up_proj.weight", r"experts\.2\.up_proj\.weight"),
        ("m.count", "count"),
    ],
)
def test_a_parameter_that_nothing_fills_is_named(tmp_path: Path, lost: str, parameter: str) -> None:
    weights = published()
    del weights[lost]
    with pytest.raises(CheckpointError, match=f"no weights for .*{parameter}"):
        load_module(Experts(), checkpoint(tmp_path, weights), PREFIXES)


def test_a_weight_for_either_name_fills_a_tied_parameter(tmp_path: Path) -> None:
    weights = published()
    weights["m.head.weight"] = weights.pop("m.gate.weight")
    module = Experts()
    load_module(module, checkpoint(tmp_path, weights), PREFIXES)
    assert torch.equal(module.gate.weight, weights["m.head.weight"])


def test_an_unexpected_weight_is_named(tmp_path: Path) -> None:
    weights = published() | {"m.extra.weight": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=r"unexpected.*'extra\.weight'") as caught:
        load_module(Experts(), checkpoint(tmp_path, weights), PREFIXES)
    assert caught.value.field == "m.extra.weight"


def test_an_expert_too_many(tmp_path: Path) -> None:
    weights = published() | {"m.experts.3.down_proj.weight": torch.zeros(WIDTH, INNER)}
    with pytest.raises(CheckpointError, match=r"unexpected.*'experts\.3\.down_proj\.weight'"):
        load_module(Experts(), checkpoint(tmp_path, weights), PREFIXES)


def test_two_weights_for_one_place(tmp_path: Path) -> None:
    weights = published() | {"m.m.norm.bias": torch.zeros(WIDTH)}
    with pytest.raises(CheckpointError, match=r"norm\.bias: goes where"):
        load_module(Experts(), checkpoint(tmp_path, weights), {"m.m.": ""} | PREFIXES)


class Stacked(nn.Module, StackedWeights):
    """Queries, keys and values as one product, with a bias; and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 8)
        self.norm = nn.LayerNorm(WIDTH)

    def stacked_weights(self, name: str) -> dict[str, Destination]:
        kinds = ("weight", "bias")
        return {f"{x}.{kind}": Destination(f"qkv.{kind}", (rows,)) for x, rows in ROWS.items() for kind in kinds}


ROWS = {"q": slice(0, 4), "k": slice(4, 6), "v": slice(6, 8)}


def published_parts() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes: dict[str, tuple[int, ...]] = {"norm.weight": (WIDTH,), "norm.bias": (WIDTH,)}
    for name, rows in ROWS.items():
        outputs = rows.stop - rows.start
        shapes |= {f"{name}.weight": (outputs, WIDTH), f"{name}.bias": (outputs,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def test_parts_of_a_stacked_parameter(tmp_path: Path) -> None:
    weights, module = published_parts(), Stacked()
    load_module(module, checkpoint(tmp_path, weights))
    for kind in ("weight", "bias"):
        assert torch.equal(module.qkv.get_parameter(kind), torch.cat([weights[f"{x}.{kind}"] for x in "qkv"]))


@pytest.mark.parametrize("lost", ["q.weight", "k.bias", "v.weight"])
def test_a_part_that_nothing_fills_is_named_as_published(tmp_path: Path, lost: str) -> None:
    weights = published_parts()
    del weights[lost]
    with pytest.raises(CheckpointError, match=f"no weights for 1 parameters of the model: {lost}$|: {lost};"):
        load_module(Stacked(), checkpoint(tmp_path, weights))


def test_a_part_of_a_wrong_shape_is_named(tmp_path: Path) -> None:
    weights = published_parts() | {"k.weight": torch.zeros(4, WIDTH)}
    with pytest.raises(CheckpointError, match=r"expected \(2, 5\), found \(4, 5\)") as caught:
        load_module(Stacked(), checkpoint(tmp_path, weights))
    assert caught.value.field == "k.weight"


def test_a_part_that_comes_twice_is_named(tmp_path: Path) -> None:
    weights = published_parts() | {"again.k.weight": torch.zeros(2, WIDTH)}
    with pytest.raises(CheckpointError, match=r"k\.weight: goes where (again\.)?k\.weight goes"):
        load_module(Stacked(), checkpoint(tmp_path, weights), {"again.": "", "": ""})


def test_a_module_on_the_meta_device_is_checked_only(tmp_path: Path) -> None:
    with torch.device("meta"):
        module = Stacked()
    weights = published_parts()
    load_module(module, checkpoint(tmp_path, weights))
    del weights["q.bias"]
    with pytest.raises(CheckpointError, match=r"q\.bias"):
        load_module(module, checkpoint(tmp_path, weights))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_module_on_a_gpu(tmp_path: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "WINDOW_BYTES", 1 << 16)
    linear = nn.Linear(500, 700)
    weights = {name: parameter.detach() for name, parameter in linear.named_parameters()}
    device = open_device("cuda")
    for _ in range(5):
        # Its random initialization is still running when the weights arrive.
        there = nn.Linear(500, 700, device="cuda", dtype=dtype)
        load_module(there, checkpoint(tmp_path, weights), device=device)
        for name, weight in weights.items():
            assert torch.equal(there.get_parameter(name).cpu(), weight.to(dtype))


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
