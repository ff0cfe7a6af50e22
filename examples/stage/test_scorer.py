"""The stage keeps the contract of stages, and gives what the model gives alone."""

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from omni.payload import Payload
from omni.testing import check_stage
from omni.tiny import write_json
from omni_scorer.kind import ScorerKind
from omni_scorer.options import ScorerOptions

WIDTH = 8


class Hidden(msgspec.Struct, frozen=True):
    """What a producer sends with its rows."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with the weights of the model."""
    write_json(tmp_path / "config.json", {"model_type": "scorer", "scorer_width": WIDTH})
    generator = torch.Generator().manual_seed(0)
    weights = {"scorer.weight": torch.randn(1, WIDTH, generator=generator), "scorer.bias": torch.ones(1)}
    save_file(weights, tmp_path / "model.safetensors")
    return tmp_path


def request(*counts: int) -> list[Payload]:
    """Inputs of so many rows each."""
    generator = torch.Generator().manual_seed(sum(counts))
    return [Payload(Hidden(), {"rows": torch.randn(count, WIDTH, generator=generator)}) for count in counts]


def test_keeps_the_contract(folder: Path) -> None:
    options = ScorerOptions(max_rows=5)
    inputs = [request(3, 5, 1), request(2), request(1, 1, 1, 4)]
    check_stage(ScorerKind, options=options, inputs=inputs, model="omni_scorer.model:build", checkpoint=folder)
