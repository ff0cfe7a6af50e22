"""The sampling kernels against the sampler, and the ids that they keep against the definition in float64."""

import math
import random
import statistics
from typing import Any

import pytest
import torch

from omni_ar.kernels.sampling import fused_draw, fused_sample
from omni_ar.kernels.sampling.state import EVERYTHING
from omni_ar.sampling.sampler import draw, sample
from tests.support.sampler_bench import assert_same_ids, moved, noisy_logits, state_of
from tests.support.tiers import SLOW, few

pytestmark = pytest.mark.thorough

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

ROWS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 2**63 - 1},
    {"temperature": 1.1, "seed": 3, "top_k": 5},
    {"temperature": 1.0, "seed": 4, "top_p": 0.7},
    {"temperature": 1.3, "seed": 5, "min_p": 0.2},
    {"temperature": 2.5, "seed": 10, "top_n_sigma": 1.0},
    {"temperature": 1.5, "seed": 11, "top_n_sigma": 1.5, "top_p": 0.8, "suppress_token_ids": tuple(range(1, 20, 3))},
    {"temperature": 1.2, "seed": 12, "top_n_sigma": 2.0, "top_k": 6, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.0, "seed": 6, "top_k": 9, "top_p": 0.6, "min_p": 0.05},
    {"temperature": 0.8, "seed": 7, "top_k": 21, "top_p": 0.95},
    {"repetition_penalty": 1.7, "frequency_penalty": 0.5, "presence_penalty": 0.25},
    {"logit_bias": {0: 3.0, 5: -2.0, 17: 4.0}},
    {"temperature": 1.0, "seed": 8, "bad_words_ids": ((3,), (2, 7), (1, 9), (9,))},
    {"min_tokens": 3, "stop_token_ids": (1, 2), "logit_bias": {1: 50.0}},
    {"temperature": 1.0, "seed": 9, "allowed_token_ids": (0, 4, 6, 11), "top_k": 2, "top_p": 0.9},
    {"suppress_token_ids": tuple(range(1, 20)), "bad_words_ids": ((7, 0),), "allowed_token_ids": tuple(range(20))},
]  # fmt: skip
"""The last has no allowed token behind a 7."""

PROMPT, OUTPUTS = (1, 2, 2, 5), (5, 5, 7)


def check_rows(vocab: int, rows: list[dict[str, Any]], device: str, scale: float = 2.0, steps: int = 2) -> set[int]:
    """Gives the ids that were drawn."""
    state = state_of(vocab, rows, PROMPT, OUTPUTS)
    generator = torch.Generator().manual_seed(vocab)
    rows_R, drawn = torch.randperm(len(rows), generator=generator), set[int]()
    there = moved(state, device)
    for step in range(steps):
        logits_RV = torch.randn(len(rows), vocab, generator=generator) * scale
        position_R = torch.full_like(rows_R, step + 2)
        expected_R = sample(logits_RV, state, rows_R, position_R, EVERYTHING)
        given_R = fused_sample(logits_RV.to(device), there, rows_R.to(device), position_R.to(device)).cpu()
        assert_same_ids(given_R, expected_R, noisy_logits(logits_RV, state, rows_R, position_R))
        drawn |= set(expected_R.tolist())
    return drawn


@pytest.mark.parametrize("device", DEVICES)
def test_a_narrow_row_equals_the_sampler(device: str):
    assert -1 in check_rows(37, ROWS, device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_wide_row_equals_the_sampler(device: str, small_capacity: None):
    assert -1 in check_rows(100, ROWS, device, steps=1)


@pytest.mark.parametrize("scale", [0.01, 30.0])
def test_a_wide_row_is_searched_whole_where_it_must(scale: float, small_capacity: None):
    """A flat one has no small nucleus, and k may exceed the number of gathered ids."""
    rows: list[dict[str, Any]] = [
        {"temperature": 1.0, "seed": 4, "top_p": 0.7},
        {"temperature": 1.0, "seed": 5, "top_k": 70, "top_p": 0.9, "min_p": 0.01},
        {"temperature": 1.0, "seed": 6, "min_p": 0.99},
        {"temperature": 1.0, "seed": 6, "top_k": 200},
        {"temperature": 1.0, "seed": 7, "top_n_sigma": 4.0, "top_p": 0.9},
        {"temperature": 1.0, "seed": 8, "top_n_sigma": 2.5, "top_k": 70, "min_p": 0.01},
    ]
    check_rows(100, rows, "cpu", scale, 1)


NAN, INF = math.nan, math.inf
ODD = [
    ({0: NAN, 3: NAN}, {3, 0}),
    ({5: INF}, set()),
    ({5: INF, 8: INF, 2: NAN}, {2}),
    ({2: 1e35, 7: 2e32}, set()),
]
"""Logits that are not numbers, and forbidden ids."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("vocab", few(1, [20, 100], SLOW))
def test_logits_that_are_no_numbers(device: str, vocab: int, small_capacity: None):
    state = state_of(vocab, ROWS[:7])
    there, rows_R = moved(state, device), torch.arange(7)
    for odd, never in ODD:
        logits_RV = torch.randn(7, vocab, generator=torch.Generator().manual_seed(1)) * 2
        for place, value in odd.items():
            logits_RV[:, place] = value
        expected_R = sample(logits_RV, state, rows_R, rows_R, EVERYTHING)
        given_R = fused_sample(logits_RV.to(device), there, rows_R.to(device), rows_R.to(device)).cpu()
        assert given_R.tolist() == expected_R.tolist()
        assert not never & set(expected_R.tolist())
        if INF in odd.values():
            assert set(expected_R.tolist()) <= {place for place, value in odd.items() if value == INF}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("vocab", [20, 100])
def test_a_row_of_nans_has_no_token_and_does_not_reach_others(device: str, vocab: int, small_capacity: None):
    state = state_of(vocab, ROWS[:7])
    there, rows_R = moved(state, device), torch.arange(7)
    logits_RV = torch.randn(7, vocab, generator=torch.Generator().manual_seed(1))
    usual_R = sample(logits_RV, state, rows_R, rows_R, EVERYTHING)
    logits_RV[1::2] = NAN
    expected = [-1 if row % 2 else int(usual_R[row]) for row in range(7)]
    assert sample(logits_RV, state, rows_R, rows_R, EVERYTHING).tolist() == expected
    assert fused_sample(logits_RV.to(device), there, rows_R.to(device), rows_R.to(device)).tolist() == expected


@pytest.mark.parametrize("device", DEVICES)
def test_a_code_is_always_one_that_can_be_looked_up(device: str):
    state = state_of(37, ROWS[:3])
    there, rows_R = moved(state, device), torch.arange(3)
    logits_RV = torch.full((3, 37), NAN)
    assert draw(logits_RV, state, rows_R, rows_R, 1, EVERYTHING).min() >= 0
    codes_R = fused_draw(logits_RV.to(device), there, rows_R.to(device), rows_R.to(device), 1)
    assert codes_R.min() >= 0
    assert codes_R.max() < 37


@pytest.mark.parametrize("vocab", [1, 2, 5])
def test_small_vocabularies_are_sampled_alike(vocab: int):
    check_rows(
        vocab, [{}, {"temperature": 1.0, "seed": 1}, {"temperature": 1.0, "seed": 2, "top_k": 3, "top_p": 0.5}], "cpu"
    )


@pytest.mark.parametrize("device", DEVICES)
def test_the_first_of_equal_logits_is_the_likeliest(device: str, small_capacity: None):
    for vocab, first in ((20, 3), (100, 33)):
        logits_RV = torch.zeros(1, vocab, device=device)
        logits_RV[0, first:] = 7.0
        logits_RV[0, :3] = -0.0
        rows_R = torch.zeros(1, dtype=torch.int64, device=device)
        assert fused_sample(logits_RV, moved(state_of(vocab, [{}]), device), rows_R, rows_R).tolist() == [first]


@pytest.mark.parametrize("device", DEVICES)
def test_positions_of_the_state_and_a_column_to_write_to(device: str):
    state = state_of(11, ROWS[:3])
    logits_RV = torch.randn(2, 11, generator=torch.Generator().manual_seed(0))
    rows_R, fields_NC = torch.tensor([2, 1]), torch.tensor([[0, 4], [0, 9], [0, 6]])
    out_RW = torch.full((2, 3), 77, device=device)
    there = moved(state, device)
    fused_sample(
        logits_RV.to(device), there, rows_R.to(device), fields_NC.to(device)[:, 1], by_row=True, out_R=out_RW[:, 2]
    )
    expected_R = sample(logits_RV, state, rows_R, fields_NC[rows_R, 1], EVERYTHING)
    assert out_RW.tolist() == [[77, 77, i] for i in expected_R.tolist()]


CODE_ROWS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5, "seed": 1},
    {"temperature": 2.0, "seed": 2, "code_top_k": 5, "code_top_p": 0.8},
    {"temperature": 0.7, "seed": 3, "code_temperature": 1.7, "code_top_p": 0.6, "top_k": 1},
    {"temperature": 0.7, "seed": 4, "code_temperature": 0.3, "code_top_k": 40, "min_p": 0.9},
    {"temperature": 0.7, "seed": 5, "code_temperature": 0.0, "code_top_k": 7},
    {"temperature": 0.0, "seed": 6, "code_temperature": 1.3, "code_top_k": 9},
    {"temperature": 1.0, "seed": 7, "ignore_eos": True, "min_tokens": 4, "suppress_token_ids": tuple(range(20))},
]


@pytest.mark.parametrize("device", DEVICES)
def test_codes_are_drawn_as_the_sampler_draws_them(device: str):
    state = state_of(37, CODE_ROWS)
    there = moved(state, device)
    generator = torch.Generator().manual_seed(0)
    rows_R = torch.tensor([1, 0, 2, 7, 6, 3, 5, 4])
    for group in (1, 2, 15):
        logits_RV = torch.randn(len(rows_R), 37, generator=generator) * 3
        position_R = rows_R + 5 * group
        expected_R = draw(logits_RV, state, rows_R, position_R, group, EVERYTHING)
        given_R = fused_draw(logits_RV.to(device), there, rows_R.to(device), position_R.to(device), group)
        assert given_R.tolist() == expected_R.tolist()


def kept_ids(logits_V: torch.Tensor, top_k: int, top_p: float, min_p: float, top_n_sigma: float) -> set[int]:
    """By definition, in float64: equal logits stay or go together."""
    x = [float(value) for value in logits_V.double()]
    kept = {i for i, value in enumerate(x) if not top_k or sum(other > value for other in x) < top_k}
    if top_n_sigma:
        kept = {i for i in kept if x[i] >= max(x) - top_n_sigma * statistics.pstdev(x)}
    weight = {i: math.exp(x[i] - max(x)) for i in kept}
    total = sum(weight.values())
    if top_p < 1:
        upto = {i: sum(weight[j] for j in kept if x[j] <= x[i]) for i in kept}
        kept = {i for i in kept if upto[i] > (1 - top_p) * total or x[i] == max(x)}
    return {i for i in kept if weight[i] >= min_p}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "asked",
    [
        {"top_k": 3},
        {"top_p": 0.65},
        {"top_k": 7, "top_p": 0.8},
        {"min_p": 0.3},
        {"top_p": 1e-9},
        {"top_n_sigma": 0.5},
        {"top_n_sigma": 1.1, "top_p": 0.8},
    ],
)
def test_drawn_tokens_are_the_kept_ones(device: str, asked: dict[str, float]):
    """Equal logits among them: those that tie with the last that is kept stay."""
    logits_V = torch.tensor([1.0, 2.0, 2.0, 0.0, 2.5, 1.0, -1.0, 2.0, 0.5, 1.0, -3.0])
    draws = 20 if device == "cpu" else 20_000
    state = moved(state_of(11, [{"temperature": 1.0, "seed": 11, **asked}]), device)
    zeros_R, position_R = torch.zeros(draws, dtype=torch.int64, device=device), torch.arange(draws, device=device)
    given_R = fused_sample(logits_V.to(device).expand(draws, -1).contiguous(), state, zeros_R, position_R).cpu()
    off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "top_n_sigma": 0.0}
    kept = kept_ids(logits_V, **(off | asked))  # type: ignore[arg-type]
    assert set(given_R.tolist()) == kept
    probability = torch.tensor([logits_V[i].double().exp() if i in kept else 0.0 for i in range(11)])
    expected = probability / probability.sum()
    # Six standard deviations.
    error = (torch.bincount(given_R, minlength=11) / draws - expected).abs()
    assert (error <= 6 * (expected * (1 - expected) / draws).sqrt() + 1e-12).all()


SOME = [0.0, 0.5, 0.7, 1.0, 1.5]


def random_rows(count: int, vocab: int, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)

    def maybe(name: str, value: Any) -> dict[str, Any]:
        return {name: value} if chance.random() < 0.4 else {}

    def some_ids(most: int) -> tuple[int, ...]:
        return tuple(sorted(chance.sample(range(1, vocab), min(vocab - 1, chance.randint(1, most)))))

    rows = []
    for index in range(count):
        row = {"temperature": chance.choice(SOME), "seed": chance.getrandbits(63)}
        row |= maybe("top_k", chance.choice([1, 2, 20, 50, 127, 128, 129, 1000, 5000, 200_000]))
        row |= maybe("top_p", chance.choice([0.01, 0.5, 0.8, 0.95, 0.999]))
        row |= maybe("min_p", chance.choice([0.001, 0.05, 0.5]))
        row |= maybe("top_n_sigma", chance.choice([0.3, 1.0, 2.5, 6.0]))
        row |= maybe("repetition_penalty", chance.uniform(0.5, 2))
        row |= maybe("frequency_penalty", chance.choice([-1.0, 0.5]))
        row |= maybe("presence_penalty", chance.choice([-0.5, 1.5]))
        if vocab > 8:
            row |= maybe("logit_bias", {i: chance.uniform(-5, 5) for i in some_ids(300)})
            row |= maybe("suppress_token_ids", some_ids(1000))
            row |= maybe("bad_words_ids", tuple((i, max(1, i - 1)) for i in some_ids(20)))
            row |= {"stop_token_ids": some_ids(5)} | maybe("min_tokens", 3)
        rows.append(row if index else {})
    return rows


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [0.2, 3.0])
@pytest.mark.parametrize("vocab", [1, 3, 64, 1025, 3072, 4096, 4097, 31_999, 152_064])
def test_random_rows_on_the_gpu(vocab: int, scale: float):
    rows = random_rows(24, vocab, vocab)
    prompt, outputs = [i % vocab for i in PROMPT], [i % vocab for i in OUTPUTS]
    state = state_of(vocab, rows, prompt, outputs)
    there = moved(state, "cuda")
    generator = torch.Generator().manual_seed(vocab)
    rows_R = torch.randperm(len(rows), generator=generator)
    logits_RV = torch.randn(len(rows), vocab, generator=generator) * scale
    position_R = torch.randint(0, 2**32, (len(rows),), generator=generator)
    position_R[::2] %= 5
    expected_R = sample(logits_RV, state, rows_R, position_R, EVERYTHING)
    given_R = fused_sample(logits_RV.cuda(), there, rows_R.cuda(), position_R.cuda())
    assert_same_ids(given_R.cpu(), expected_R, noisy_logits(logits_RV, state, rows_R, position_R))
    for row in range(len(rows)):
        one = slice(row, row + 1)
        alone = fused_sample(logits_RV[one].cuda(), there, rows_R[one].cuda(), position_R[one].cuda())
        assert torch.equal(alone, given_R[one])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [2048, 152_064])
def test_logits_of_half_precision_on_the_gpu(vocab: int, dtype: torch.dtype):
    """Without top-p: half of them are equal to one another, and the sampler's sort would choose among those at its end."""
    rows: list[dict[str, Any]] = [
        {}, {"temperature": 0.7, "seed": 1}, {"temperature": 1.0, "seed": 2, "top_k": 50},
        {"temperature": 1.0, "seed": 3, "min_p": 0.1},
    ]  # fmt: skip
    state, rows_R = state_of(vocab, rows), torch.arange(4)
    logits_RV = (torch.randn(4, vocab, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    expected_R = sample(logits_RV.float(), state, rows_R, rows_R, EVERYTHING)
    given_R = fused_sample(logits_RV.cuda(), moved(state, "cuda"), rows_R.cuda(), rows_R.cuda()).cpu()
    assert_same_ids(given_R, expected_R, noisy_logits(logits_RV.float(), state, rows_R, rows_R))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_codes_on_the_gpu(rows: int):
    asked = {"temperature": 0.9, "code_top_k": 50, "code_top_p": 0.8}
    some = [asked, asked | {"code_temperature": 0.7}, asked | {"code_top_k": 0}, asked | {"code_top_p": 1.0}, {}]
    state = state_of(2048, [{"seed": i} | some[i % 5] for i in range(rows)])
    there, rows_R = moved(state, "cuda"), torch.arange(rows)
    for group in range(1, 16):
        logits_RV = torch.randn(rows, 2048, generator=torch.Generator().manual_seed(group)) * 2
        expected_R = draw(logits_RV, state, rows_R, rows_R + 3, group, EVERYTHING)
        given_R = fused_draw(logits_RV.cuda(), there, rows_R.cuda(), (rows_R + 3).cuda(), group).cpu()
        assert (given_R == expected_R).all()
