"""Rows of all kinds in one batch: each gets what transformers gives it alone, whoever its neighbours are."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni.sampling import LogitsEdit
from omni_ar.kernels.sampling.state import EVERYTHING
from omni_ar.sampling.edits import pack_bitmask
from omni_ar.sampling.rng import gumbel
from omni_ar.sampling.sampler import sample
from tests.support.sampler_bench import SamplerBench, reference_logits, reference_warp, resolved, starting

pytestmark = pytest.mark.thorough

VOCAB, ROWS, STEPS = 23, 5, 6
IDS = st.integers(0, VOCAB - 1)
# Products of these with counts are exact, so that the reference's float64 rounds to the same float32.
PENALTIES = st.integers(-8, 8).map(lambda quarters: quarters / 4)


@st.composite
def parameters(draw):
    """Resolved parameters of one row: each feature is there or not. Some id is always possible: 0 is never ruled out."""

    def maybe(strategy, off):
        return draw(strategy) if draw(st.booleans()) else off

    some_ids = st.sets(st.integers(1, VOCAB - 1), min_size=1, max_size=5).map(tuple)
    words = st.lists(st.lists(IDS, min_size=1, max_size=4).map(lambda ids: (*ids[:-1], max(ids[-1], 1))), min_size=1)
    return resolved(
        VOCAB,
        seed=draw(st.integers(0, 2**63 - 1)),
        temperature=maybe(st.sampled_from([0.3, 0.7, 1.0, 1.7]), 0.0),
        top_k=maybe(st.integers(1, 30), 0),
        top_p=maybe(st.floats(0.1, 0.99), 1.0),
        min_p=maybe(st.floats(0.01, 0.9), 0.0),
        top_n_sigma=maybe(st.floats(0.1, 3), 0.0),
        repetition_penalty=maybe(st.floats(0.5, 2), 1.0),
        frequency_penalty=maybe(PENALTIES, 0.0),
        presence_penalty=maybe(PENALTIES, 0.0),
        logit_bias=maybe(st.dictionaries(IDS, st.floats(-5, 5, width=32), max_size=4), {}),
        stop_token_ids=maybe(some_ids, ()),
        min_tokens=maybe(st.integers(1, STEPS), 0),
        suppress_token_ids=maybe(some_ids, ()),
        allowed_token_ids=maybe(some_ids.map(lambda ids: (0, *ids)), None),
        bad_words_ids=maybe(words.map(tuple), ()),
    )


def run(rows, prompts, logits_SRV, places):
    """Tokens of the rows in `places`, run together for STEPS steps."""
    bench = SamplerBench(VOCAB, ROWS)
    bench.start([starting(place, rows[place], prompts[place]) for place in places])
    tokens: dict[int, list[int]] = {place: [] for place in places}
    for step, logits_RV in enumerate(logits_SRV):
        before = logits_RV.clone()
        ids = bench.sample(logits_RV[places], places, [step] * len(places))
        assert torch.equal(logits_RV, before)
        bench.observe(places, [[i] for i in ids], [1] * len(places))
        for place, token in zip(places, ids, strict=True):
            tokens[place].append(token)
    return tokens


def reference(p, prompt, logits_SV):
    """One row by transformers, with our noise as the last processor."""
    outputs: list[int] = []
    for step, logits_V in enumerate(logits_SV):
        scores_V = reference_logits(logits_V, p, prompt, outputs)
        if p.temperature:
            seed, zero, position = (torch.tensor([value]) for value in (p.seed, 0, step))
            scores_V = reference_warp(scores_V, p) + gumbel(seed, zero, position, 0, 0, VOCAB)[0]
        outputs.append(int(scores_V.argmax()))
    return outputs


# As long as the longest of the bad words: transformers leaves out words that are longer than the text.
PROMPTS = st.lists(IDS, min_size=4, max_size=8)


@settings(deadline=None, max_examples=12)
@given(
    st.lists(parameters(), min_size=ROWS, max_size=ROWS),
    st.lists(PROMPTS, min_size=ROWS, max_size=ROWS),
    st.integers(0, 2**31),
)
def test_rows_equal_transformers_beside_any_other_rows(rows, prompts, seed):
    logits_SRV = torch.randn(STEPS, ROWS, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
    together = run(rows, prompts, logits_SRV, list(range(ROWS)))
    assert run(rows, prompts, logits_SRV, [4, 2, 0, 1, 3]) == together
    for place in range(ROWS):
        assert run(rows, prompts, logits_SRV, [place])[place] == together[place]
        assert reference(rows[place], prompts[place], logits_SRV[:, place]) == together[place]


def test_a_bad_word_that_is_longer_than_the_text_is_excluded() -> None:
    logits_SRV = torch.zeros(STEPS, ROWS, VOCAB)
    logits_SRV[..., 11], logits_SRV[..., 7] = 5.0, 4.0
    row = resolved(VOCAB, temperature=0.0, bad_words_ids=((11, 11),))
    assert run([row] * ROWS, [[11]] * ROWS, logits_SRV, [2])[2] == [7, 11, 7, 11, 7, 11]


@settings(deadline=None, max_examples=15)
@given(st.lists(parameters(), min_size=ROWS, max_size=ROWS), PROMPTS, st.integers(0, 2**31))
def test_a_captured_step_serves_rows_with_any_parameters(rows, prompt, seed):
    logits_RV = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
    bench = SamplerBench(VOCAB, ROWS)
    bench.start([starting(place, p, prompt) for place, p in enumerate(rows)])
    places = list(range(ROWS))
    captured_R = sample(logits_RV, bench.state, torch.tensor(places), torch.tensor(places), EVERYTHING)
    assert captured_R.tolist() == bench.sample(logits_RV, places, places)


def test_each_feature_changes_tokens():
    """Otherwise the tests above would be empty."""
    logits_SRV = torch.randn(40, 1, VOCAB, generator=torch.Generator().manual_seed(0))
    prompt, changed = list(range(12)), []
    base = {"temperature": 0.8, "seed": 3, "stop_token_ids": (2, 5, 7, 11)}
    one = run([resolved(VOCAB, **base)], [prompt], logits_SRV, [0])
    for asked in (
        {"temperature": 0.0}, {"seed": 4}, {"top_k": 2}, {"top_p": 0.3}, {"min_p": 0.4}, {"top_n_sigma": 0.3},
        {"repetition_penalty": 1.9}, {"frequency_penalty": 1.5}, {"presence_penalty": -1.5}, {"logit_bias": {4: 3.0}},
        {"min_tokens": 40}, {"suppress_token_ids": tuple(range(1, 9))}, {"allowed_token_ids": (1, 2, 3)},
        {"bad_words_ids": ((6,), (7,), (8,))}, {"bad_words_ids": tuple((i, j) for i in range(9) for j in range(9))},
    ):  # fmt: skip
        changed.append(run([resolved(VOCAB, **{**base, **asked})], [prompt], logits_SRV, [0]) != one)
    assert all(changed), changed


@settings(deadline=None, max_examples=15)
@given(st.lists(parameters(), min_size=ROWS, max_size=ROWS), st.integers(0, 2**31), st.sets(st.integers(0, ROWS - 1)))
def test_edits_of_some_rows_change_those_and_no_others(rows, seed, edited):
    generator = torch.Generator().manual_seed(seed)
    logits_RV = torch.randn(ROWS, VOCAB, generator=generator)
    bench = SamplerBench(VOCAB, ROWS)
    bench.start([starting(place, p) for place, p in enumerate(rows)])
    places, zeros = list(range(ROWS)), [0] * ROWS
    plain = bench.sample(logits_RV, places, zeros)
    allowed = {place: torch.rand(VOCAB, generator=generator).numpy() < 0.5 for place in edited}
    edits = [(place, LogitsEdit(allowed=pack_bitmask(allowed[place]))) for place in edited]
    with_edits = bench.sample(logits_RV, places, zeros, edits)
    for place in places:
        if place not in edited:
            assert with_edits[place] == plain[place]
            continue
        scores_V = reference_logits(logits_RV[place], rows[place], [], [])
        possible = set(scores_V.isfinite().nonzero().flatten().tolist()) & set(allowed[place].nonzero()[0].tolist())
        assert with_edits[place] in (possible or {-1})
