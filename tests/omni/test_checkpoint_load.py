import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from omni import Omni
from omni.checkpoint import Checkpoint, Destination, StackedWeights, fill_dummy, load_module, stream
from omni.checkpoint.load import check_finite
from omni.device import open_device
from omni.errors import CheckpointError
from tests.support.tiny_omni import tiny_plugins
from tests.support.tiny_text import write_chat_model

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
        ("m.gate.weight", "gate.weight, head.weight"),
        ("m.norm.bias", "norm.bias"),
        ("m.experts.1.down_proj.weight", r"experts\.1\.down_proj\.weight"),
        ("m.experts.2.up_proj.weight", r"experts\.2\.up_proj\.weight"),
        ("m.count", "count"),
    ],
)
def test_a_parameter_that_nothing_fills_is_named(tmp_path: Path, lost: str, parameter: str) -> None:
    weights = published()
    del weights[lost]
    with pytest.raises(CheckpointError, match=rf"no weights for \d parameters of the model: (m\.)?{parameter} \("):
        load_module(Experts(), checkpoint(tmp_path, weights), PREFIXES)


def test_a_weight_for_either_name_fills_a_tied_parameter(tmp_path: Path) -> None:
    weights = published()
    weights["m.head.weight"] = weights.pop("m.gate.weight")
    module = Experts()
    load_module(module, checkpoint(tmp_path, weights), PREFIXES)
    assert torch.equal(module.gate.weight, weights["m.head.weight"])


@pytest.mark.parametrize("name", ["extra.weight", "experts.3.down_proj.weight"])
def test_an_unexpected_weight_is_named(tmp_path: Path, name: str) -> None:
    weights = published() | {f"m.{name}": torch.zeros(WIDTH, INNER)}
    with pytest.raises(CheckpointError, match=rf"unexpected.*'{name}'") as caught:
        load_module(Experts(), checkpoint(tmp_path, weights), PREFIXES)
    assert caught.value.field == f"m.{name}"


@pytest.mark.parametrize("name", ["norm.bias", "experts.1.up_proj.weight"])
def test_two_weights_for_one_place(tmp_path: Path, name: str) -> None:
    weights = published()
    weights[f"m.m.{name}"] = torch.zeros_like(weights[f"m.{name}"])
    with pytest.raises(CheckpointError, match=rf"{name}: has the same destination as (m\.)?m\.{name}"):
        load_module(Experts(), checkpoint(tmp_path, weights), {"m.m.": ""} | PREFIXES)


def test_a_module_on_the_meta_device_is_checked_only(tmp_path: Path) -> None:
    with torch.device("meta"):
        module = Experts()
    weights = published()
    load_module(module, checkpoint(tmp_path, weights), PREFIXES)
    del weights["m.norm.bias"]
    with pytest.raises(CheckpointError, match=r"norm\.bias"):
        load_module(module, checkpoint(tmp_path, weights), PREFIXES)


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


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_place_of_a_weight_counts(device: str, dtype: torch.dtype) -> None:
    whole = torch.randn(3, 1031).to(device, dtype)
    whole[0, 0] = torch.finfo(dtype).max
    for value in (math.nan, math.inf, -math.inf):
        for place in (0, 1, 515, 1030):
            spoiled = torch.randn(1031).to(device, dtype)
            check_finite({"a": whole, "b": spoiled}, [whole, spoiled])
            spoiled[place] = value
            with pytest.raises(CheckpointError, match=r"^b: holds numbers that are not finite in (b?float|float)"):
                check_finite({"a": whole, "b": spoiled}, [whole, spoiled])


def test_weights_without_floats_or_contents_are_not_checked() -> None:
    for weight in (torch.arange(3), torch.empty(3, device="meta"), torch.empty(0)):
        check_finite({"a": weight}, [weight])


def test_a_part_that_is_not_finite_is_named(tmp_path: Path) -> None:
    weights = published()
    weights["m.experts.1.up_proj.weight"][1, 2] = math.inf
    with pytest.raises(CheckpointError, match=r"^m\.experts\.1\.up_proj\.weight: holds numbers that are not finite"):
        load_module(Experts(), checkpoint(tmp_path, weights), PREFIXES)


def test_numbers_too_large_for_the_dtype_in_use(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"weight": torch.full((2, 3), 1e5)}, tmp_path / "model.safetensors")
    for dtype, fits in ((torch.bfloat16, True), (torch.float16, False)):
        module = nn.Linear(3, 2, bias=False, dtype=dtype)
        if fits:
            load_module(module, Checkpoint(tmp_path))
            continue
        with pytest.raises(CheckpointError, match=r"^weight: holds numbers that are not finite in float16"):
            load_module(module, Checkpoint(tmp_path))


def test_a_model_with_a_nan_does_not_start(tmp_path: Path) -> None:
    write_chat_model(tmp_path)
    file = tmp_path / "model.safetensors"
    weights, name = load_file(file), "model.layers.1.mlp.up_proj.weight"
    weights[name][5, 7] = math.nan
    save_file(weights, file)
    with pytest.raises(CheckpointError, match=rf"^{name}: holds numbers that are not finite"):
        Omni(tmp_path, device="cpu", plugins=tiny_plugins())
