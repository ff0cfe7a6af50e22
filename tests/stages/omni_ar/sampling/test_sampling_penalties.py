"""Each penalty and mask by itself, against transformers where it has it, and at its edges."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import NoBadWordsLogitsProcessor

from omni_ar.sampling.sampler import top_logprobs
from tests.support.sampler_bench import SamplerBench, resolved, starting

VOCAB = 6
IDS = st.integers(0, VOCAB - 1)


def bench_with(prompt=(), outputs=(), vocab=VOCAB, **asked):
    bench = SamplerBench(vocab, 1)
    bench.start([starting(0, resolved(vocab, **asked), prompt, outputs=list(outputs))])
    return bench


def possible(bench, position=0):
    """Ids that a row may be given: each is offered as by far the likeliest."""
    offered = (torch.eye(bench.vocab) * 50)[:, None]
    return {i for i in range(bench.vocab) if bench.sample(offered[i], [0], [position]) == [i]}


@given(st.lists(st.lists(IDS, min_size=1, max_size=5).map(tuple), min_size=1, max_size=8), st.lists(IDS, max_size=8))
def test_bad_words_are_those_of_transformers(words, text):
    """Few ids, so that most words nearly match; texts shorter than the words; the same text as prompt and as outputs."""
    # transformers 5.17 ignores words longer than the text, 5.24 does not. An id that no word has makes it long enough.
    zeros, ids = torch.zeros(1, VOCAB), torch.tensor([[VOCAB] * 5 + text], dtype=torch.int64)
    scores = NoBadWordsLogitsProcessor([list(word) for word in words])(ids, zeros)[0]
    expected = set(scores.isfinite().nonzero().flatten().tolist())
    if len({word[0] for word in words if len(word) == 1}) == VOCAB:
        return  # refused at submission
    for split in {0, len(text) // 2, len(text)}:
        assert possible(bench_with(text[:split], text[split:], bad_words_ids=tuple(words))) == expected


def test_the_longest_and_the_most_bad_words():
    words = tuple((*[0] * 15, i) for i in range(1, 6)) + tuple((5, i // 5, i % 5) for i in range(25))
    words += tuple((1, 2, 3, i % 6) for i in range(256 - len(words)))
    assert possible(bench_with([0] * 15, bad_words_ids=words)) == {0}
    assert possible(bench_with([0] * 14, bad_words_ids=words)) == set(range(6))
    assert possible(bench_with([4], bad_words_ids=words)) == set(range(6))
    assert possible(bench_with([5, 4], bad_words_ids=words)) == {5}
    assert possible(bench_with([5, 5, 4], bad_words_ids=words)) == {5}
    assert possible(bench_with([1, 1, 2, 3], bad_words_ids=words)) == set()


@given(st.sets(st.integers(0, 199), min_size=1, max_size=199), st.sets(st.integers(0, 199), max_size=199))
def test_sets_of_many_ids_hold_together(allowed, suppressed):
    if allowed <= suppressed:
        return  # refused at submission
    bench = bench_with(vocab=200, allowed_token_ids=tuple(allowed), suppress_token_ids=tuple(suppressed))
    assert (~bench.state.forbidden[0]).nonzero().flatten().tolist() == sorted(allowed - suppressed)


def test_the_most_biases():
    ids = range(1024)
    bench = SamplerBench(2000, 1)
    bench.start([starting(0, resolved(2000, logit_bias={i: i / 1024 - 2 for i in ids}))])
    logits_RV = torch.full((1, 2000), -1.5)
    logits_RV[0, :1024] = 0.0
    assert bench.sample(logits_RV, [0], [0]) == [1023]


def float64_logprobs(logits_RV):
    values = logits_RV.double().numpy()
    shifted = values - values.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@given(
    st.integers(1, 5), st.integers(1, 60), st.integers(0, 2**31), st.sampled_from([1.0, 30.0]),
    st.sampled_from([0.0, -4000.0]), st.data(),
)  # fmt: skip
def test_top_logprobs_are_those_of_float64(rows, vocab, seed, scale, offset, data):
    logits_RV = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale + offset
    k = data.draw(st.integers(0, min(vocab, 20)))
    ids_R = torch.tensor([data.draw(st.integers(0, vocab - 1)) for _ in range(rows)])
    ids, logprobs, ranks = top_logprobs(logits_RV, ids_R, k)
    assert (ids.shape, logprobs.shape, ranks.shape) == ((rows, 1 + k), (rows, 1 + k), (rows,))
    assert (ids.dtype, logprobs.dtype, ranks.dtype) == (torch.int64, torch.float32, torch.int64)
    expected = float64_logprobs(logits_RV)
    assert ids[:, 0].tolist() == ids_R.tolist()
    np.testing.assert_allclose(logprobs, np.take_along_axis(expected, ids.numpy(), 1), atol=1e-5, rtol=1e-6)
    best = -np.sort(-expected, 1)[:, :k]
    np.testing.assert_allclose(logprobs[:, 1:], best, atol=1e-5, rtol=1e-6)
    for row in range(rows):
        assert len(set(ids[row, 1:].tolist())) == k
        likelier = (logits_RV[row] > logits_RV[row, ids_R[row]]).sum().item()
        assert ranks[row].item() <= likelier + 1  # float32 may round two log-probabilities to one
        assert ranks[row].item() == 1 + (logits_RV[row].log_softmax(-1) > logprobs[row, 0]).sum().item()


@pytest.mark.parametrize("k", [0, 1, 3])
def test_ids_that_tie_share_a_rank(k):
    _, _, ranks = top_logprobs(torch.tensor([[1.0, 2.0, 2.0, 0.0]] * 4), torch.arange(4), k)
    assert ranks.tolist() == [3, 1, 1, 4]
