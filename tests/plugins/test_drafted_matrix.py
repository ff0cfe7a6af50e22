"""The matrix with drafters: the same texts, log-probabilities and speech as without drafts, under whatever parameters, pressure and
steps in flight."""

from pathlib import Path

import pytest

from omni.parallel import RankLayout
from tests.plugins.cut_stages import CutStages
from tests.plugins.matrix import PLAYED, Cell, Family, covering
from tests.plugins.matrix_families import FAMILIES, family_in
from tests.plugins.matrix_run import run_cell
from tests.plugins.speaking_heads import write_eagle3
from tests.support.tiers import SLOW, chosen, few
from tests.support.tiny_drafters import add_mtp_once, drafting_head, drafting_model

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("cheap_passes")]

DRAFTERS = ("fabricated", "ngram", "draft_model")
HEADS = ("eagle3", "mtp")
"""Over the hidden states of the text family, and `eagle3` over those of a thinker. Their weights are random, so nearly all that
they draft is rolled back; tests/stages/omni_ar/test_simulated_heads.py has those that learned."""

UNDRAFTED = {"JSON schema", "JSON schema, penalty, logprobs", "host processor", "all together"}
"""The sets with logits processors or grammars: such rows have no drafts."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafted_matrix")


@pytest.fixture
def family(folder: Path, name: str) -> Family:
    made = family_in(folder, name)
    if name == "text":
        add_mtp_once(made.folder)
    return made


def settings(family: Family, drafter: str, cell: Cell) -> dict[str, object]:
    drafts, stage = 1 + cell.seed % 8, family.writer
    args: dict[str, dict[str, object]] = {"ngram": {"fewest": 1, "most": 3}, "fabricated": {"rate": 0.8}}
    if drafter == "draft_model":
        args[drafter] = {"model": str(drafting_model(family.folder, family.folder.parent))}
    if drafter == "eagle3":
        write = write_eagle3 if family.writer == "thinker" else drafting_head
        args[drafter] = write(family.folder, family.folder.parent)
    if drafter == "mtp":
        args[drafter] = {}
    adaptive = cell.seed % 3 > 0
    given = {"drafter": drafter, "draft_tokens": drafts, "drafter_args": args[drafter], "adaptive_drafts": adaptive}
    return {f"{stage}.{name}": value for name, value in given.items()}


CELLS = covering(PLAYED)


@pytest.mark.parametrize(
    ("name", "drafter", "cell"),
    chosen(
        [
            ("text", "fabricated", CELLS[0]),
            ("text", "ngram", CELLS[7]),
            ("text", "draft_model", CELLS[10]),
            ("text", HEADS[0], CELLS[11]),
        ],
        (
            *((name, drafter, cell) for name in FAMILIES for drafter in DRAFTERS for cell in CELLS),
            *(("text", head, cell) for head in HEADS for cell in CELLS),
            *(("qwen3_omni", "eagle3", cell) for cell in CELLS),
        ),
    ),
    ids=str,
)
def test_drafts_change_no_request(family: Family, drafter: str, cell: Cell) -> None:
    known = drafter == "fabricated"
    played = run_cell(family, cell, settings=settings(family, drafter, cell), again=known)
    counters, drafts = played.counters[family.writer], not (cell.tiny_budget or cell.asked in UNDRAFTED)
    # Of many requests, some draft at any time; a budget of a few tokens leaves few steps without chunks.
    if known and drafts:
        assert counters["accepted_drafts"] > counters["drafted_tokens"] / 4 > 0
    if drafter == "draft_model" and drafts:
        assert counters["drafted_tokens"] > 0


@pytest.mark.parametrize("name", ["text"])
@pytest.mark.parametrize(("ranks", "drafter", "cell"), few(0, zip((2, 4) * 9, DRAFTERS * 6, CELLS, strict=False), SLOW))
def test_each_rank_accepts_the_same(family: Family, ranks: int, drafter: str, cell: Cell) -> None:
    """Of a stage whose layers are cut: at the end the ranks have one state."""
    cut = CutStages(RankLayout(ranks))
    played = run_cell(family, cell, cut, settings=settings(family, drafter, cell), again=True)
    assert cell.asked in UNDRAFTED or played.counters[family.writer]["drafted_tokens"] > 0
