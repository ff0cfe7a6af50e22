"""Counts, seen ids and newest tokens: of generated tokens only, also after a row started again."""

from collections import Counter
from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from omni_ar.kernels.sampling.state import MAX_BAD_WORD_LENGTH, Need, SamplingFlags
from omni_ar.kernels.step.reference import observe
from omni_ar.sampling.pack import start_size
from tests.support.sampler_bench import SamplerBench, resolved, starting

VOCAB = 19
IDS = st.integers(0, VOCAB - 1)
EVERYTHING = {
    "repetition_penalty": 1.5, "frequency_penalty": 0.5, "presence_penalty": 0.25, "bad_words_ids": ((1, 2), (3,)),
}  # fmt: skip


def row_of(state, row):
    """All columns of a row's state, except those that no test counts."""
    tensors = {f.name: getattr(state, f.name) for f in fields(state) if isinstance(getattr(state, f.name), Tensor)}
    rows = {name: values[row] for name, values in tensors.items()}
    return {n: (values[:VOCAB] if n in ("seen", "counts") else values).tolist() for n, values in rows.items()}


@st.composite
def drafts(draw):
    """Rounds of (ids, how many of them count) of one row, each of the same width."""
    width = draw(st.integers(1, 4))
    ids = st.lists(IDS, min_size=width, max_size=width)
    return draw(st.lists(st.tuples(ids, st.integers(0, width)), max_size=30))


@given(drafts(), st.lists(IDS, max_size=20))
def test_a_row_that_starts_again_is_as_if_it_had_generated_its_tokens(rounds, prompt):
    lived, again = SamplerBench(VOCAB, 3), SamplerBench(VOCAB, 3)
    sampling = resolved(VOCAB, **EVERYTHING)
    lived.start([starting(1, sampling, prompt)])
    for ids, count in rounds:
        lived.observe([1], [ids], [count])
    outputs = [i for ids, count in rounds for i in ids[:count]]
    again.start([starting(1, sampling, prompt, outputs=outputs)])
    assert row_of(again.state, 1) == row_of(lived.state, 1)
    # And both are correct.
    counts, newest = Counter(outputs), [*[-1] * MAX_BAD_WORD_LENGTH, *prompt, *outputs][-MAX_BAD_WORD_LENGTH:]
    assert lived.state.counts[1, :VOCAB].tolist() == [counts[i] for i in range(VOCAB)]
    assert lived.state.seen[1, :VOCAB].tolist() == [i in {*prompt, *outputs} for i in range(VOCAB)]
    assert lived.state.recent[1].tolist() == newest


@given(st.lists(st.tuples(IDS, st.integers(0, 1)), min_size=4, max_size=4))
def test_rows_do_not_touch_each_other(tokens):
    bench, sampling = SamplerBench(VOCAB, 6), resolved(VOCAB, **EVERYTHING)
    bench.start([starting(row, sampling, [row]) for row in range(6)])
    before = [row_of(bench.state, row) for row in range(6)]
    rows = [4, 0, 5, 2]
    bench.observe(rows, [[token] for token, _ in tokens], [count for _, count in tokens])
    for row in range(6):
        counted = row in rows and tokens[rows.index(row)][1]
        assert (row_of(bench.state, row) == before[row]) == (not counted)


def test_a_row_without_a_token_leaves_no_trace():
    bench = SamplerBench(VOCAB, 2)
    bench.start([starting(row, resolved(VOCAB, **EVERYTHING), [3, 4]) for row in range(2)])
    before = row_of(bench.state, 0)
    bench.observe([0, 1], [[-1, 5], [5, 6]], [0, 2])
    bench.observe([0], [[-1]], [1])  # no id was possible: there is none to count
    after = row_of(bench.state, 0)
    assert after.pop("recent")[-1] == -1
    before.pop("recent")
    assert after == before


def test_a_row_is_set_up_afresh():
    bench = SamplerBench(VOCAB, 2)
    bench.start([starting(0, resolved(VOCAB, suppress_token_ids=(3,), logit_bias={3: 1.0}, **EVERYTHING), [1, 2])])
    bench.observe([0], [[7]], [1])
    bench.start([starting(0, resolved(VOCAB))])
    fresh = SamplerBench(VOCAB, 2)
    fresh.start([starting(0, resolved(VOCAB))])
    assert row_of(bench.state, 0) == row_of(fresh.state, 0)
    assert not bench.state.forbidden[0].any()


def test_a_batch_that_needs_no_history_keeps_none():
    bench = SamplerBench(VOCAB, 1)
    bench.start([starting(0, resolved(VOCAB, temperature=0.7, top_k=3, suppress_token_ids=(1,)))])
    before = row_of(bench.state, 0)
    bench.observe([0], [[4]], [1])
    assert row_of(bench.state, 0) == before


def test_history_flags_that_no_row_needs_change_no_token():
    bench = SamplerBench(VOCAB, 1)
    bench.start([starting(0, resolved(VOCAB))])
    everything = SamplingFlags(Need.REPETITION | Need.COUNTS | Need.RECALLS)
    observe(bench.state, torch.tensor([0]), torch.tensor([[4]]), torch.tensor([1]), everything)
    logits_RV = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(0))
    assert bench.sample(logits_RV, [0], [1]) == logits_RV.argmax(-1).tolist()


@pytest.mark.parametrize("vocab", [1, 63, 64, 65, 5000])
def test_a_start_uploads_no_more_than_it_may(vocab):
    length = 700
    most = start_size(vocab, length)
    full = {
        "repetition_penalty": 1.5,
        "presence_penalty": 1.0,
        "logit_bias": dict.fromkeys(range(min(vocab, 1024)), 1.0),
        "bad_words_ids": tuple((0,) * 16 for _ in range(256)),
        "allowed_token_ids": tuple(range(vocab)),
        "stop_token_ids": tuple(range(min(vocab, 16))),
    }
    outputs = [i % vocab for i in range(length)]
    bench = SamplerBench(vocab, 1, max_model_len=length)
    taken = bench.start([starting(0, resolved(vocab, **full), range(vocab), outputs=outputs)])
    assert taken <= most
    assert taken > most - 3 * (1024 - min(vocab, 1024)) - 3 * 16
