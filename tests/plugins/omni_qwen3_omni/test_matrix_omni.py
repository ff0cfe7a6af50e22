"""The matrix on Qwen3-Omni: whatever thinker and talker are asked for, whatever the pressure, whatever is in flight, text, codes
and sound are the same.

What is said alone, one step at a time, is what transformers says; what is said in each cell of the matrix is that.
"""

import json

import pytest

from tests.support.matrix import AGAINST, GREEDY, PLAYED, SAYS_THE_SAME, SETS, Cell, Told, covering, product
from tests.support.matrix_families import TALKER_SETS, OmniFamily
from tests.support.matrix_run import Ask, LateDevice, cut, play, run_cell, small_party
from tests.support.tiers import SLOW, chosen, few

PROMPTS = OmniFamily.prompts
EVERY = (*SETS, *TALKER_SETS)
ASKED = (*PLAYED, *TALKER_SETS)
CHOSEN = covering(ASKED)


@pytest.fixture(scope="module")
def family() -> OmniFamily:
    return OmniFamily()


@pytest.mark.parametrize(
    ("asked", "prompt"),
    [
        # One each, and each prompt several times; all of them where slow tests are asked for.
        pytest.param(asked, prompt, marks=() if prompt == number % PROMPTS else pytest.mark.slow)
        for number, asked in enumerate(EVERY)
        for prompt in range(PROMPTS)
    ],
)
def test_alone_it_says_what_transformers_says(family: OmniFamily, asked: str, prompt: int) -> None:
    told, answer = family.alone(asked, prompt), family.answer(asked, prompt)
    stops = family.sets[asked]["thinker"].stop or ()
    given, held = cut(answer.ids, stops, family.vocabulary)
    assert (told.tokens, list(told.end("thinker")[1])) == (given, held)
    # Where a stop string ends the text, transformers has gone on.
    if not held:
        assert told.codes == [tuple(frame) for frame in answer.codes.T.tolist()]


def spoken(told: Told) -> list[int]:
    """The text tokens that frames are made of: one each, and in the place of the last one, whatever it is, its end."""
    return [*told.tokens[:-1], -1][: len(told.codes)]


@pytest.mark.parametrize("asked", few(5, [name for name in EVERY if name != GREEDY][::-1], SLOW))
def test_each_set_changes_what_is_said(family: OmniFamily, asked: str) -> None:
    against = AGAINST.get(asked, GREEDY)
    pairs = [(family.alone(asked, n), family.alone(against, n)) for n in range(family.prompts)]
    same_text = [one.tokens == other.tokens for one, other in pairs]
    same_speech = [spoken(one) == spoken(other) for one, other in pairs]
    same_codes = [one.codes == other.codes for one, other in pairs]
    if asked in TALKER_SETS:
        assert all(same_text)
        assert sum(same_codes) <= family.prompts // 2
    else:
        assert all(same_text) if asked in SAYS_THE_SAME else sum(same_text) <= family.prompts // 2
        assert same_codes == same_speech, "each token is heard in its frame"


def test_texts_with_a_form_have_it(family: OmniFamily) -> None:
    told = [family.alone("JSON schema", prompt) for prompt in range(family.prompts)]
    texts = [b"".join(map(family.vocabulary.written, one.tokens)) for one in told if one.end("thinker")[0] == "stop"]
    assert len(texts) > 2
    assert {json.loads(text)["color"] for text in texts} <= {"red", "blue"}


@pytest.mark.parametrize("cell", chosen(CHOSEN[::9], CHOSEN), ids=str)
def test_each_request_is_told_what_it_is_told_alone(family: OmniFamily, cell: Cell) -> None:
    run_cell(family, cell, small_party)


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED)
def test_every_cell_of_the_matrix(family: OmniFamily, asked: str) -> None:
    for cell in product([asked]):
        run_cell(family, cell, small_party)


@pytest.mark.parametrize("in_flight", [1, 4])
def test_the_talker_is_preempted_too(family: OmniFamily, in_flight: int) -> None:
    played = run_cell(family, Cell(in_flight, True, True, True, True, "talker defaults"), small_party)
    assert all(played.preemptions(family).values())


def test_samples_of_a_seed_speak_differently(family: OmniFamily) -> None:
    """In every group; and each as it speaks alone."""
    asks = [Ask("talker defaults", 1, sample_index=n) for n in range(3)]
    cell = Cell(4, few_blocks=True, tiny_budget=False, cached=True, captured=True, asked="talker defaults")
    played = play(family, cell.settings(family.few(cell.asked)), asks, LateDevice(cell.seed))
    for ask, told in zip(asks, played.told, strict=True):
        told.assert_like(family.alone(ask.asked, ask.prompt, ask.sample_index))
    assert len({tuple(told.tokens) for told in played.told}) == 1
    by_group = [tuple(zip(*told.codes, strict=True)) for told in played.told]
    assert all(len(set(groups)) == 3 for groups in zip(*by_group, strict=True))
