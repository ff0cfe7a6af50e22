"""Weights that are no numbers are refused by name, once they are where they are used."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from omni import Omni
from omni.checkpoint import Checkpoint, Destination, StackedWeights, load_module
from omni.checkpoint.load import check_finite
from omni.errors import CheckpointError
from tests.support.tiny_omni import tiny_plugins
from tests.support.tiny_text import write_chat_model

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


def test_what_is_no_float_or_has_no_contents_is_let_by() -> None:
    for weight in (torch.arange(3), torch.empty(3, device="meta"), torch.empty(0)):
        check_finite({"a": weight}, [weight])


class Stack(nn.Module, StackedWeights):
    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.Parameter(torch.empty(3, 2, 3))

    def stacked_weights(self, name: str) -> dict[str, Destination]:
        return {f"part{i}": Destination("stack", (i,)) for i in range(3)}


def test_a_part_of_a_stacked_parameter_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    parts = {f"part{i}": torch.full((2, 3), float(i)) for i in range(3)}
    parts["part1"][1, 2] = math.inf
    save_file(parts, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"^part1: "):
        load_module(Stack(), Checkpoint(tmp_path))


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
