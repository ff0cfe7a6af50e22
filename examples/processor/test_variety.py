"""The processor against a loop over the rows, and in an engine."""

from pathlib import Path

import pytest
import torch

from omni import InputError, Omni, SamplingParams
from omni_ar.processors import ProcessedRows
from omni_text.tiny import write_tiny
from omni_variety.processor import VarietyProcessor

TOKENS = 24


@pytest.fixture
def omni(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Omni:
    """A tiny text model, in an engine that fails a processor that waits for the device."""
    monkeypatch.setenv("OMNI_SYNC_CHECK", "error")
    write_tiny(tmp_path, seed=0)
    return Omni(tmp_path, device="cpu")


def sampling(**arguments: object) -> SamplingParams:
    """Greedy, with log-probabilities, which show the ids."""
    processors = {"variety": arguments} if arguments else None
    return SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, logprobs=0, processors=processors)


def test_logits_are_those_of_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    logits_RV = torch.randn(3, 7, generator=generator)
    counts_NV = torch.randint(4, (5, 7), generator=generator)
    params_RW = torch.tensor([[2.0, 1.0], [0.5, 3.0], [0.0, 0.0]])  # the last row does not use it
    rows_R = torch.tensor([4, 0, 2])
    rows = ProcessedRows(params_RW, counts_NV[rows_R].sum(1), torch.full((3,), -1), rows_R, counts_NV)
    expected_RV = logits_RV.clone()
    for row, ((by, most), where) in enumerate(zip(params_RW.tolist(), rows_R.tolist(), strict=True)):
        for token in range(7):
            expected_RV[row, token] -= by if counts_NV[where, token] >= most else 0.0
    torch.testing.assert_close(VarietyProcessor().apply(logits_RV, rows), expected_RV)


def test_no_token_comes_twice(omni: Omni) -> None:
    with omni:
        plain = omni.generate("hello", stream=False, sampling=sampling())
        varied = omni.generate("hello", stream=False, sampling=sampling(by=1e4))
    ids, varied_ids = ([token.id for token in result.logprobs or ()] for result in (plain, varied))
    assert len(set(ids)) < TOKENS, "the model repeats itself"
    assert len(set(varied_ids)) == TOKENS


def test_wrong_arguments_are_refused(omni: Omni) -> None:
    with omni, pytest.raises(InputError, match=r"processors\.variety.*most"):
        omni.generate("hello", stream=False, sampling=sampling(by=1.0, most=0))
