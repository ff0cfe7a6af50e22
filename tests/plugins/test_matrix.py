"""The matrix: text, codes and sound are the same under whatever parameters, pressure and steps in flight.

The results of a request alone, one step at a time, are those of transformers, and those in each cell of the matrix are the same.
"""

import json

import numpy as np
import pytest
import torch

from omni.testing.simulation.late import LateDevice
from tests.plugins.matrix import (
    AGAINST,
    GREEDY,
    PLAYED,
    SAYS_THE_SAME,
    SCHEMA,
    SEEDED,
    SETS,
    Cell,
    Family,
    covering,
    pairs,
    product,
)
from tests.plugins.matrix_families import FAMILIES, TALKER_SETS, OmniFamily, TextFamily, family_in
from tests.plugins.matrix_run import CellRequest, cut, play, run_cell
from tests.support.received import NEAR, Received
from tests.support.tiers import SLOW, chosen, few

pytestmark = pytest.mark.thorough

EVERY = (*SETS, *TALKER_SETS)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> object:
    return tmp_path_factory.mktemp("matrix")


@pytest.fixture
def family(folder, name: str) -> Family:
    return family_in(folder, name)


@pytest.fixture
def text(folder) -> TextFamily:
    family = family_in(folder, "text")
    assert isinstance(family, TextFamily)
    return family


@pytest.fixture
def omni(folder) -> OmniFamily:
    family = family_in(folder, "qwen3_omni")
    assert isinstance(family, OmniFamily)
    return family


def test_the_selection_has_every_pair_of_values() -> None:
    every, selected = set().union(*map(pairs, product(PLAYED))), covering(PLAYED)
    assert set().union(*map(pairs, selected)) == every
    assert len(selected) < len(product(PLAYED)) / 6


@pytest.mark.parametrize(
    ("name", "asked", "prompts"),
    [
        *(("text", asked, range(5)) for asked in SETS),
        # Every second set with one prompt; all of them with all prompts where slow tests are asked for.
        *(("qwen3_omni", asked, (n // 2 % 5,)) for n, asked in enumerate(EVERY) if n % 2),
        *few(0, (("qwen3_omni", asked, range(5)) for asked in EVERY), SLOW),
    ],
    ids=str,
)
def test_a_request_alone_equals_the_reference(family: Family, asked: str, prompts: range) -> None:
    for prompt in prompts:
        received, (tokens, codes) = family.alone(asked, prompt), family.said(asked, prompt)
        params = family.sets[asked][family.writer]
        given, held = cut(tokens, params.stop or (), family.vocabulary)
        _, withheld = received.ends[family.writer]
        assert (received.tokens, withheld) == (given, tuple(held))
        # Where a stop string ends the text, transformers has gone on.
        assert codes is None or held or received.codes == codes
        assert set(received.near) <= {"audio", "logprobs of the prompt", "logprobs of the tokens"}


def spoken(received: Received) -> list[int]:
    """The text tokens that frames are made of: one each, and in the place of the last one, whatever it is, its end."""
    return [*received.tokens[:-1], -1][: len(received.codes)]


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        *(("text", asked) for asked in SETS if asked != GREEDY),
        *few(1, (("qwen3_omni", asked) for asked in EVERY[::-1] if asked != GREEDY), SLOW),
    ],
)
def test_each_set_of_parameters_changes_the_tokens(family: Family, asked: str) -> None:
    against, half = AGAINST.get(asked, GREEDY), len(family.prompts) // 2
    both = [(family.alone(asked, n), family.alone(against, n)) for n in range(len(family.prompts))]
    same_text = [one.tokens == other.tokens for one, other in both]
    same_codes = [one.codes == other.codes for one, other in both]
    new = [name for name in both[1][0].near if name not in both[1][1].near]
    if asked in SAYS_THE_SAME:
        assert new == [f"logprobs of the {'prompt' if 'prompt' in asked else 'tokens'}"]
    else:
        assert bool(new) == ("logprobs" in asked or asked == "all together")
    if asked in SAYS_THE_SAME or asked in TALKER_SETS:
        assert all(same_text)
    else:
        assert sum(same_text) <= half
    if asked in TALKER_SETS:
        assert sum(same_codes) <= half
    else:
        assert same_codes == [spoken(one) == spoken(other) for one, other in both], "each token is heard in its frame"


@pytest.mark.parametrize("asked", ["logprobs", "prompt logprobs", "JSON schema, penalty, logprobs"])
def test_log_probabilities_are_those_of_the_model(text: TextFamily, asked: str) -> None:
    """Of the tokens in order, whatever the changes to their logits."""
    name = f"logprobs of the {'prompt' if asked == 'prompt logprobs' else 'tokens'}"
    for prompt, ids in enumerate(text.ids):
        received = text.alone(asked, prompt)
        with torch.no_grad():
            logits_TV = text.model(torch.tensor([[*ids, *received.tokens]])).logits[0]
        expected_TV = logits_TV.double().log_softmax(-1)[: len(ids) - 1 if "prompt" in name else None]
        expected_TV = expected_TV if "prompt" in name else expected_TV[len(ids) - 1 : -1]
        said = [*ids[1:]] if "prompt" in name else received.tokens
        places, rows, ranks = zip(*received.exact[name], strict=True)
        assert list(places) == list(range(1, len(ids)) if "prompt" in name else range(len(said)))
        assert [row[0] for row in rows] == list(said)
        own_T1 = expected_TV.gather(1, torch.tensor(said)[:, None])
        assert list(ranks) == (1 + (expected_TV > own_T1).sum(1)).tolist()
        numbers = [expected_TV[place, list(row)] for place, row in enumerate(rows)]
        np.testing.assert_allclose(received.numbers(name), torch.cat(numbers), rtol=NEAR, atol=NEAR)


@pytest.mark.parametrize("name", few(1, ["text", "qwen3_omni"], SLOW))
def test_structured_texts_follow_their_grammar(family: Family) -> None:
    different = set[bytes]()
    for asked in ("JSON schema", "JSON schema, penalty, logprobs"):
        received = [family.alone(asked, prompt) for prompt in range(len(family.prompts))]
        ended = [one for one in received if one.ends[family.writer][0] == "stop"]
        texts = [b"".join(map(family.vocabulary.written, one.tokens)) for one in ended]
        assert len(texts) > 2
        different |= set(texts)
        for answer in map(json.loads, texts):
            assert list(answer) == SCHEMA["required"]
            assert answer["color"] in ("red", "blue")
            assert 0 <= answer["sides"] <= 99
            assert isinstance(answer["sides"], int)
    assert len(different) > 1


TALKS = [
    Cell(n, few_blocks=True, tiny_budget=True, cached=True, captured=True, asked="talker defaults") for n in (1, 4)
]
DEFAULT = {
    "text": covering(FAMILIES["text"].asked)[:7],
    "qwen3_omni": covering(FAMILIES["qwen3_omni"].asked)[:1],
}
"""Of the selections, the cells of the default run. The first ones of a text model have the pairs of all other conditions."""


@pytest.mark.parametrize(
    ("name", "cell"),
    chosen(
        ((name, cell) for name, cells in DEFAULT.items() for cell in cells),
        ((name, cell) for name, family in FAMILIES.items() for cell in covering(family.asked)),
    ),
    ids=str,
)
def test_batched_requests_equal_requests_alone(family: Family, cell: Cell) -> None:
    played = run_cell(family, cell)
    if cell in TALKS and isinstance(family, OmniFamily):
        assert all(played.preemptions(family).values()), "the talker is preempted too"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "asked"), [(name, asked) for name in ("text", "qwen3_omni") for asked in FAMILIES[name].asked]
)
def test_every_cell_of_the_matrix(family: Family, asked: str) -> None:
    for cell in product([asked]):
        run_cell(family, cell)


@pytest.mark.parametrize("in_flight", chosen([4], [1, 4]))
def test_a_seed_and_the_sample_s_index_decide_and_nothing_else(text: TextFamily, in_flight: int) -> None:
    """Four samples each of one question, beside others, preempted."""
    asks = [CellRequest(SEEDED, 1, sample_index=n) for n in range(4)]
    asks += [CellRequest("all together", 4, joins=9, sample_index=n) for n in range(4)]
    cell = Cell(in_flight, few_blocks=True, tiny_budget=False, cached=True, captured=True, asked=SEEDED)
    played = play(text, cell.settings(text.few("all together")), [*asks, CellRequest(GREEDY, 2)], LateDevice(in_flight))
    assert played.counters["text"]["preemptions"] > 0
    for ask, received in zip(asks, played.received, strict=False):
        received.assert_like(text.alone(ask.asked, ask.prompt, ask.sample_index))
    for four in (played.received[:4], played.received[4:8]):
        assert len({tuple(one.tokens) for one in four}) == 4


def test_samples_of_a_seed_speak_differently(omni: OmniFamily) -> None:
    """In every group; and each as alone."""
    asks = [CellRequest("talker defaults", 1, sample_index=n) for n in range(3)]
    cell = Cell(4, few_blocks=True, tiny_budget=False, cached=True, captured=True, asked="talker defaults")
    played = play(omni, cell.settings(omni.few(cell.asked)), asks, LateDevice(cell.seed))
    for ask, received in zip(asks, played.received, strict=True):
        received.assert_like(omni.alone(ask.asked, ask.prompt, ask.sample_index))
    assert len({tuple(one.tokens) for one in played.received}) == 1
    by_group = [tuple(zip(*one.codes, strict=True)) for one in played.received]
    assert all(len(set(groups)) == 3 for groups in zip(*by_group, strict=True))
