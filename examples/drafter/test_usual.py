"""The drafter against a loop over the rows, and in an engine."""

from pathlib import Path

import pytest
import torch

from omni import ConfigError, Omni, Result, SamplingParams
from omni_ar.drafters import DraftRows
from omni_text.tiny import write_tiny
from omni_usual.drafter import UsualDrafter

DRAFTS = 3


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny text model, for engines that fail a drafter that waits for the device."""
    monkeypatch.setenv("OMNI_SYNC_CHECK", "error")
    write_tiny(tmp_path, seed=0)
    return tmp_path


def drafts_of(text: list[int], newest: int) -> list[int]:
    drafts: list[int] = []
    while len(drafts) < DRAFTS:
        token = drafts[-1] if drafts else text[-1]
        places = [at for at in range(max(0, len(text) - newest), len(text) - 1) if text[at] == token]
        if not places:
            break
        drafts.append(text[places[-1] + 1])
    return drafts


@pytest.mark.parametrize("newest", [1, 4, 100])
def test_drafts_are_those_of_a_loop(newest: int) -> None:
    text_NL = torch.randint(5, (9, 30), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    lengths = [8, 0, 3, 19, 28, 1, 12, 5, 2]
    drafts_NK, proposed_N = torch.zeros(9, DRAFTS, dtype=torch.int64), torch.zeros(9, dtype=torch.int64)
    rows = DraftRows(
        rows_R=torch.tensor([4, 0, 2, 1, 3, 6]),
        text_NL=text_NL,
        length_N=torch.tensor(lengths),
        drafts_NK=drafts_NK,
        proposed_N=proposed_N,
    )
    UsualDrafter(newest).draft(rows)
    for row in rows.rows_R.tolist():
        expected = drafts_of(text_NL[row, : lengths[row] + 1].tolist(), newest)
        assert drafts_NK[row, : proposed_N[row]].tolist() == expected


def answer(folder: Path, **settings: object) -> Result:
    sampling = SamplingParams(temperature=1.0, seed=1, max_tokens=40, allowed_token_ids=(5, 17, 42))
    with Omni(folder, device="cpu", overrides={f"text.{name}": value for name, value in settings.items()}) as omni:
        return omni.generate("hello", stream=False, sampling=sampling)


def test_no_token_changes_and_some_drafts_are_right(folder: Path) -> None:
    plain, drafted = answer(folder), answer(folder, drafter="usual")
    assert drafted.text == plain.text
    drafts = drafted.metrics.stages["text"].drafts
    assert drafts is not None
    assert sum(drafts.accepted) > 0


def test_wrong_arguments_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"text\.drafter_args.*newest"):
        answer(folder, drafter="usual", drafter_args={"newest": 0})
