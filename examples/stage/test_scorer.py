"""The stage keeps the contract of stages, and scores the hidden states of a text model."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from omni import Omni, SamplingParams, StageError
from omni.payload import Payload
from omni.testing import check_stage
from omni_scorer.kind import ScorerKind
from omni_scorer.model import Scores
from omni_scorer.options import ScorerOptions
from omni_text.tiny import write_tiny

MODEL = "omni_scorer.model:build"


class Sample(msgspec.Struct, frozen=True):
    """A producer's message with rows."""


def request(*counts: int) -> list[Payload]:
    """Inputs of so many rows each."""
    generator = torch.Generator().manual_seed(sum(counts))
    return [Payload(Sample(), {"hidden": torch.randn(count, 8, generator=generator)}) for count in counts]


def scores(inputs: list[Payload]) -> list[Payload]:
    """The outputs for them."""
    outputs: list[Payload] = []
    first = 0
    for each in inputs:
        rows_nW = each.tensors["hidden"]
        assert isinstance(rows_nW, torch.Tensor)
        outputs.append(Payload(Scores(first=first, scores=np.sqrt((rows_nW.numpy() ** 2).mean(1)))))
        first += len(rows_nW)
    return outputs


def test_keeps_the_contract() -> None:
    inputs = [request(3, 5, 1), request(2), request(1, 1, 1, 4)]
    check_stage(
        ScorerKind,
        options=ScorerOptions(max_rows=5),
        inputs=inputs,
        expected=[scores(each) for each in inputs],
        refused=[request(2, 6)],
        model=MODEL,
    )


def test_scores_hidden_states_of_any_family(tmp_path: Path) -> None:
    write_tiny(tmp_path, seed=0)
    with Omni(tmp_path, device="cpu", extensions=["scorer"]) as omni:
        result = omni.generate("hello", stream=False, sampling=SamplingParams(max_tokens=1))
        states_LTD = omni.hidden_states("hello").prompt
    (output,) = result.outputs["scorer"]
    assert isinstance(output.meta, Scores)
    np.testing.assert_allclose(output.meta.scores, states_LTD[0].square().mean(1).sqrt(), rtol=1e-5)


def test_an_input_with_too_many_rows_fails_its_request(tmp_path: Path) -> None:
    write_tiny(tmp_path, seed=0)
    with Omni(tmp_path, device="cpu", extensions=["scorer"], overrides={"scorer.max_rows": 2}) as omni:
        with pytest.raises(StageError, match=r"scorer.*rows are more than scorer\.max_rows, 2"):
            omni.generate("hello", stream=False, sampling=SamplingParams(max_tokens=1))
        assert omni.generate("hello", modalities=("text",), stream=False).text
