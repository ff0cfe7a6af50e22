"""The matrix on Qwen2.5-Omni: whatever the pressure, and whatever is in flight, text, codes and sound are the same.

What is said alone, one step at a time, is what transformers says; what is said in each cell of the matrix is that.
"""

import pytest

from support.matrix_axes import Cell, covering
from support.matrix_heard import ASKED, HeardFamily
from support.matrix_run import run_cell, small_party

CELLS = covering(ASKED)
ALWAYS = (
    Cell(4, few_blocks=True, tiny_budget=True, cached=True, captured=True, asked="talker defaults"),
    Cell(2, few_blocks=True, tiny_budget=False, cached=False, captured=False, asked="greedy"),
)


@pytest.fixture(scope="module")
def family() -> HeardFamily:
    return HeardFamily()


@pytest.mark.parametrize("prompt", range(HeardFamily.prompts))
def test_alone_it_says_what_transformers_says(family: HeardFamily, prompt: int) -> None:
    told, answer = family.alone("greedy", prompt), family.greedy_answer(prompt)
    assert told.tokens == answer.ids
    assert told.codes == [tuple(frame) for frame in answer.codes.T.tolist()]


@pytest.mark.parametrize(
    "cell",
    [*ALWAYS, *(pytest.param(cell, marks=pytest.mark.slow) for cell in CELLS if cell not in ALWAYS)],
    ids=str,
)
def test_each_request_is_told_what_it_is_told_alone(family: HeardFamily, cell: Cell) -> None:
    run_cell(family, cell, small_party)
