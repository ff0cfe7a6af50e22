"""The matrix on a text model: whatever is asked for, whatever the pressure, whatever is in flight, the same is said.

What is said alone, one step at a time, is what transformers says; what is said in each cell of the matrix is that.
"""

import json

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, Qwen3ForCausalLM

from omni.sampling import NO_RULES
from tests.support.matrix import (
    AGAINST,
    GREEDY,
    NEAR,
    PLAYED,
    SAYS_THE_SAME,
    SCHEMA,
    SEEDED,
    SETS,
    Cell,
    covering,
    pairs,
    product,
)
from tests.support.matrix_families import TextFamily
from tests.support.matrix_run import Ask, LateDevice, arguments, cut, generated, play, run_cell
from tests.support.tiers import chosen

CHOSEN = covering(PLAYED)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> TextFamily:
    return TextFamily(tmp_path_factory.mktemp("matrix") / "model")


@pytest.fixture(scope="module")
def model(family: TextFamily) -> PreTrainedModel:
    return Qwen3ForCausalLM.from_pretrained(family.folder)


def test_the_selection_has_every_pair_of_values() -> None:
    every = set().union(*map(pairs, product(PLAYED)))
    assert set().union(*map(pairs, CHOSEN)) == every
    assert len(CHOSEN) < len(product(PLAYED)) / 6


@pytest.mark.parametrize("asked", SETS)
def test_alone_it_says_what_transformers_says(family: TextFamily, model: PreTrainedModel, asked: str) -> None:
    for prompt, ids in enumerate(family.ids):
        told = family.alone(asked, prompt)
        compiled = family.compiled(asked)
        params = compiled.sampling["text"].with_defaults(family.defaults)
        host_processors = compiled.rules().get("text", NO_RULES).host_processors
        tokens = generated(model, ids, params.stop_token_ids or (), arguments(params, len(ids), host_processors))
        stops = family.sets[asked]["text"].stop or ()
        given, held = cut(tokens, stops, family.vocabulary)
        assert (told.tokens, list(told.end("text")[1])) == (given, held)


@pytest.mark.parametrize("asked", [name for name in SETS if name != GREEDY])
def test_each_set_changes_what_is_said(family: TextFamily, asked: str) -> None:
    against = AGAINST.get(asked, GREEDY)
    same = [family.alone(asked, n).tokens == family.alone(against, n).tokens for n in range(family.prompts)]
    outputs = [name for name in family.alone(asked, 1).near if name not in family.alone(against, 1).near]
    if asked in SAYS_THE_SAME:
        assert all(same)
        assert outputs == [f"logprobs of the {'prompt' if 'prompt' in asked else 'tokens'}"]
    else:
        assert sum(same) <= family.prompts // 2
        assert bool(outputs) == ("logprobs" in asked or asked == "all together")


@pytest.mark.parametrize("asked", ["logprobs", "prompt logprobs", "JSON schema, penalty, logprobs"])
def test_log_probabilities_are_those_of_the_model(family: TextFamily, model: PreTrainedModel, asked: str) -> None:
    """Of the tokens as they come, whatever was done to the logits that they were drawn from."""
    name = f"logprobs of the {'prompt' if asked == 'prompt logprobs' else 'tokens'}"
    for prompt, ids in enumerate(family.ids):
        told = family.alone(asked, prompt)
        with torch.no_grad():
            logits_TV = model(torch.tensor([[*ids, *told.tokens]])).logits[0]
        expected_TV = logits_TV.double().log_softmax(-1)[: len(ids) - 1 if "prompt" in name else None]
        expected_TV = expected_TV if "prompt" in name else expected_TV[len(ids) - 1 : -1]
        said = [*ids[1:]] if "prompt" in name else told.tokens
        places, rows, ranks = zip(*told.exact[name], strict=True)
        assert list(places) == list(range(1, len(ids)) if "prompt" in name else range(len(said)))
        assert [row[0] for row in rows] == list(said)
        own_T1 = expected_TV.gather(1, torch.tensor(said)[:, None])
        assert list(ranks) == (1 + (expected_TV > own_T1).sum(1)).tolist()
        numbers = [expected_TV[place, list(row)] for place, row in enumerate(rows)]
        np.testing.assert_allclose(told.numbers(name), torch.cat(numbers), rtol=NEAR, atol=NEAR)


def test_texts_with_a_form_have_it(family: TextFamily) -> None:
    for asked in ("JSON schema", "JSON schema, penalty, logprobs"):
        told = [family.alone(asked, prompt) for prompt in range(family.prompts)]
        texts = [b"".join(map(family.vocabulary.written, one.tokens)) for one in told if one.end("text")[0] == "stop"]
        assert len(texts) > 2
        assert len(set(texts)) > 1
        for text in texts:
            answer = json.loads(text)
            assert list(answer) == SCHEMA["required"]
            assert answer["color"] in ("red", "blue")
            assert 0 <= answer["sides"] <= 99
            assert isinstance(answer["sides"], int)


@pytest.mark.parametrize("cell", chosen(CHOSEN[::7], CHOSEN), ids=str)
def test_each_request_is_told_what_it_is_told_alone(family: TextFamily, cell: Cell) -> None:
    run_cell(family, cell)


@pytest.mark.slow
@pytest.mark.parametrize("asked", PLAYED)
def test_every_cell_of_the_matrix(family: TextFamily, asked: str) -> None:
    for cell in product([asked]):
        run_cell(family, cell)


@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_seed_and_the_sample_s_index_decide_and_nothing_else(family: TextFamily, in_flight: int) -> None:
    """Four samples each of one question, beside others, preempted."""
    samples = range(4)
    asks = [Ask(SEEDED, 1, sample_index=n) for n in samples] + [
        Ask("all together", 4, joins=9, sample_index=n) for n in samples
    ]
    cell = Cell(in_flight, few_blocks=True, tiny_budget=False, cached=True, captured=True, asked=SEEDED)
    played = play(family, cell.settings(family.few("all together")), [*asks, Ask(GREEDY, 2)], LateDevice(in_flight))
    assert played.counters["text"]["preemptions"] > 0
    for ask, told in zip(asks, played.told, strict=False):
        told.assert_like(family.alone(ask.asked, ask.prompt, ask.sample_index))
    for four in (played.told[:4], played.told[4:8]):
        assert len({tuple(told.tokens) for told in four}) == 4
