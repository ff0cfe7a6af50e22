"""Penalties and warpers against transformers', alone and chained, bit for bit, on logits with many ties."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from omni_ar.sampling.penalties import apply_repetition_penalty
from omni_ar.sampling.warpers import apply_temperature, keep_top

SETTINGS = {"temperature": (0.1, 3.0), "top_p": (0.01, 0.99), "min_p": (0.001, 1.0), "penalty": (0.5, 2.0)}


@st.composite
def logits(draw):
    """`[rows, vocab]`, often of few distinct values: ties are where implementations part."""
    rows, vocab = draw(st.integers(1, 4)), draw(st.integers(2, 48))
    values = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(draw(st.integers(0, 2**31)))) * 4
    step = draw(st.sampled_from([0.0, 0.5, 2.0]))
    return (values / step).round() * step if step else values


def setting(name):
    return st.one_of(st.sampled_from([0.5, 0.8, 0.95]), st.floats(*SETTINGS[name]))


@st.composite
def logits_and(draw, setting_strategy):
    values = draw(logits())
    return values, draw(st.lists(setting_strategy, min_size=len(values), max_size=len(values)))


def row_by_row(values, make_processor, ids=None):
    """transformers' processors have one setting for the whole batch, so each row runs alone."""
    no_ids = torch.zeros(1, 0, dtype=torch.int64)
    rows = [make_processor(r)(no_ids if ids is None else ids[r][None], values[r : r + 1]) for r in range(len(values))]
    return torch.cat(rows)


WARPERS: dict[str, tuple[st.SearchStrategy[float], Callable[..., LogitsProcessor], Callable[..., Tensor]]] = {
    "temperature": (setting("temperature"), TemperatureLogitsWarper, apply_temperature),
    "top_k": (st.integers(1, 60), TopKLogitsWarper, lambda values, k_R: keep_top(values, k_R, None)),
    "top_p": (setting("top_p"), TopPLogitsWarper, lambda values, p_R: keep_top(values, None, p_R.double())),
    "min_p": (setting("min_p"), MinPLogitsWarper, lambda values, p_R: keep_top(values, None, None, p_R.float())),
}


@pytest.mark.parametrize("name", WARPERS)
@given(data=st.data())
def test_a_warper_alone(name, data):
    strategy, theirs, ours = WARPERS[name]
    values, settings = data.draw(logits_and(strategy))
    settings_R = torch.tensor(settings, dtype=torch.float64 if name in ("top_p", "min_p") else None)
    assert torch.equal(ours(values, settings_R), row_by_row(values, lambda r: theirs(settings[r])))


def within_sigmas(logits_V, top_n_sigma):
    """By definition, in float64: whether an id is kept, None if it is within rounding of the threshold."""
    possible = [x for x in logits_V.double().tolist() if x > -math.inf]
    mean = sum(possible) / len(possible)
    threshold = max(possible) - top_n_sigma * math.sqrt(sum((x - mean) ** 2 for x in possible) / len(possible))
    close = 1e-5 * (1 + abs(threshold))
    return [None if abs(x - threshold) < close else x > threshold for x in logits_V.double().tolist()]


@given(logits_and(st.floats(0.05, 4.0)), st.sets(st.integers(1, 47)))
def test_top_n_sigma(case, masked):
    values, top_n_sigmas = case
    values[:, [i for i in masked if i < values.shape[1]]] = -math.inf
    kept = keep_top(values, None, None, top_n_sigma_R=torch.tensor(top_n_sigmas))
    for row, top_n_sigma in enumerate(top_n_sigmas):
        for token, expected in enumerate(within_sigmas(values[row], top_n_sigma)):
            if expected is not None:
                assert kept[row, token] == (values[row, token] if expected else -math.inf)
        assert kept[row].max() == values[row].max()


@pytest.mark.parametrize("temperature", [0.3, 2.5])
def test_top_n_sigma_keeps_the_same_ids_at_any_temperature(temperature):
    values = torch.randn(20, 90, generator=torch.Generator().manual_seed(3))
    ones, top_n_sigma = torch.ones(20), torch.linspace(0.1, 3, 20)
    plain = keep_top(apply_temperature(values, ones), None, None, None, top_n_sigma)
    assert 20 < plain.isfinite().sum() < values.numel()
    assert torch.equal(
        keep_top(apply_temperature(values, ones * temperature), None, None, None, top_n_sigma).isfinite(),
        plain.isfinite(),
    )


def test_top_n_sigma_comes_before_top_k_and_top_p():
    values = torch.randn(1, 50, generator=torch.Generator().manual_seed(4))
    top_n_sigma = torch.tensor([1.5])
    first = keep_top(values, None, None, None, top_n_sigma)
    top_k, top_p = torch.tensor([40]), torch.tensor([0.6], dtype=torch.float64)
    assert torch.equal(keep_top(values, top_k, top_p, None, top_n_sigma), keep_top(first, top_k, top_p))


@pytest.mark.parametrize("large", [1e30, -3e38])
def test_top_n_sigma_of_logits_whose_squares_overflow_keeps_the_largest(large):
    values = torch.tensor([[0.0, 1.0, large, -math.inf], [-math.inf] * 4])
    kept = keep_top(values, None, None, None, torch.tensor([1.0, 1.0]))
    assert kept[0].max() == values[0].max()
    assert torch.equal(kept[1], values[1])


@pytest.mark.parametrize("vocab", [5, 10, 20, 100])
@pytest.mark.parametrize("top_p", [0.2, 0.4, 0.6, 0.8, 0.9])
def test_top_p_cuts_equal_logits_where_transformers_does(vocab, top_p):
    values = torch.zeros(1, vocab)  # cumulative probabilities fall on the threshold itself
    expected = TopPLogitsWarper(top_p)(torch.zeros(1, 0, dtype=torch.int64), values)
    assert torch.equal(keep_top(values, None, torch.tensor([top_p], dtype=torch.float64)), expected)


@given(logits())
def test_parameters_that_are_off_change_nothing(values):
    ones = torch.ones(len(values))
    zeros = torch.zeros(len(values))
    assert torch.equal(keep_top(apply_temperature(values, ones), zeros.long(), ones, zeros, zeros), values)
    everything = torch.ones_like(values, dtype=torch.bool)
    assert torch.equal(apply_repetition_penalty(values, everything, ones), values)
    assert keep_top(values, None, None) is values


@pytest.mark.parametrize("top_p", [0.0, 1e-9])
def test_the_least_top_p_keeps_the_best(top_p):
    values = torch.zeros(1, 30)
    values[0, 4] = 200.0  # the sum of probabilities is exactly 1, so the best id is at the cut itself
    expected = TopPLogitsWarper(top_p)(torch.zeros(1, 0, dtype=torch.int64), values)
    assert expected.isfinite().sum() == 1
    assert torch.equal(keep_top(values, None, torch.tensor([top_p], dtype=torch.float64)), expected)


def test_top_p_of_one_keeps_ids_whose_probability_underflows():
    values = torch.tensor([[0.0, -200.0, 5.0]])
    assert torch.equal(keep_top(values, None, torch.tensor([1.0])), values)
