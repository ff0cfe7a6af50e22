"""The matrix on a model whose every token emits a hidden state: what is said and what is read of it are the same in each cell.

What is told alone, one step at a time, is what the long way gives.
"""

import json

import numpy as np
import pytest

from support.hidden_family import WRITER
from support.matrix_axes import Cell, covering, product
from support.matrix_hidden import HiddenFamily
from support.matrix_reference import cut
from support.matrix_run import run_cell
from support.matrix_sets import AGAINST, GREEDY, PLAYED, SAYS_THE_SAME, SETS
from support.matrix_told import NEAR

CHOSEN = covering(PLAYED)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> HiddenFamily:
    return HiddenFamily(tmp_path_factory.mktemp("matrix") / "model")


@pytest.mark.parametrize("asked", SETS)
def test_alone_it_is_told_what_the_long_way_gives(family: HiddenFamily, asked: str) -> None:
    for prompt in range(family.prompts):
        told = family.alone(asked, prompt)
        params = family.sets[asked][WRITER]
        stops = params.stop or ()
        given, held = cut(family.said(asked, prompt), stops, family.vocabulary)
        assert (told.tokens, list(told.end(WRITER)[1])) == (given, held)
        # A token's hidden state comes with the next one, given out or not. Who reaches the limit, or says an end, has none.
        ended = told.end(WRITER)[0] == "stop" and (held or params.structured is not None)
        of_prompt, of_tokens = family.readings(prompt, [*given, 0] if ended else given)
        for reader in ("read", "filed"):
            np.testing.assert_allclose(told.numbers(f"{reader} of the prompt"), of_prompt, rtol=0, atol=NEAR)
            np.testing.assert_allclose(told.numbers(f"{reader} of the tokens"), of_tokens, rtol=0, atol=NEAR)


@pytest.mark.parametrize("asked", [name for name in SETS if name != GREEDY])
def test_each_set_changes_what_is_said(family: HiddenFamily, asked: str) -> None:
    against = AGAINST.get(asked, GREEDY)
    same = [family.alone(asked, n).tokens == family.alone(against, n).tokens for n in range(family.prompts)]
    assert all(same) if asked in SAYS_THE_SAME else sum(same) <= family.prompts // 2


def test_texts_with_a_form_have_it(family: HiddenFamily) -> None:
    told = [family.alone("JSON schema", prompt) for prompt in range(family.prompts)]
    texts = [b"".join(map(family.vocabulary.written, one.tokens)) for one in told if one.end(WRITER)[0] == "stop"]
    assert len(texts) > 2
    assert {json.loads(text)["color"] for text in texts} <= {"red", "blue"}


@pytest.mark.parametrize(
    "cell",
    [*CHOSEN, *(pytest.param(cell, marks=pytest.mark.slow) for cell in product(PLAYED) if cell not in CHOSEN)],
    ids=str,
)
def test_each_request_is_told_what_it_is_told_alone(family: HiddenFamily, cell: Cell) -> None:
    run_cell(family, cell)
