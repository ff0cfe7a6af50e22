"""Draws: their distribution, and their dependence on seeds, rows and steps."""

from typing import Any

import pytest
import torch
from torch import Tensor

from omni.device.cpu import CpuDevice
from omni.sampling import GREEDY
from omni_ar.kernels.sampling.state import EVERYTHING, Need, SamplingFlags, SamplingState
from omni_ar.options import ArOptions
from omni_ar.run import phases
from omni_ar.run.limits import Limits
from omni_ar.run.state import allocate_rows
from omni_ar.sampling.pack import flags_of, merge_flags
from omni_ar.sampling.sampler import draw, sample
from tests.support.sampler_bench import (
    SamplerBench,
    count_penalties,
    reference_logits,
    reference_warp,
    resolved,
    starting,
)
from tests.support.small_text import SmallText

pytestmark = pytest.mark.thorough

MODEL = SmallText()
VOCAB = 24
DRAWS = 40_000


def repeat(logits_V, count, prompt=(), outputs=(), **asked):
    """Ids of one draw at each of `count` positions, which are thousands."""
    bench = SamplerBench(len(logits_V), 1)
    bench.start([starting(0, resolved(len(logits_V), **asked), prompt, outputs=list(outputs))])
    drawn = [bench.sample(logits_V.expand(1000, -1), [0] * 1000, range(i, i + 1000)) for i in range(0, count, 1000)]
    return torch.tensor(drawn).flatten()


def exceeds_chance(drawn, probability_V):
    """Whether a chi-square test rejects the distribution of these draws, at the level of 0.001."""
    observed = torch.bincount(drawn, minlength=len(probability_V)).double()
    if observed[probability_V == 0].sum() > 0:
        return True
    expected = probability_V[probability_V > 0].double() * len(drawn)
    assert expected.min() > 5, "else chi-square does not apply"
    chi_square = ((observed[probability_V > 0] - expected) ** 2 / expected).sum().item()
    freedom = len(expected) - 1
    # Wilson-Hilferty bound of the 99.9 % quantile.
    return chi_square > freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3


def some_logits(seed=3):
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))


DISTRIBUTIONS = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 1.4, "top_k": 6},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 2.0, "top_n_sigma": 1.2},
    {"temperature": 0.9, "top_k": 10, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.0, "repetition_penalty": 1.6},
    {"temperature": 1.0, "frequency_penalty": 0.4, "presence_penalty": -0.3},
    {"temperature": 1.0, "logit_bias": {1: 1.5, 7: -2.0}, "suppress_token_ids": (0, 3)},
    {"temperature": 1.0, "allowed_token_ids": (2, 4, 6, 8, 10), "bad_words_ids": ((4,), (5, 6))},
]


@pytest.mark.parametrize("asked", DISTRIBUTIONS, ids=str)
def test_draws_follow_the_distribution(asked):
    prompt, outputs = [1, 2, 3, 4], [5, 6, 5, 5]
    if "bad_words_ids" in asked:
        outputs = [6, 5]
    params, logits_V = resolved(VOCAB, **asked), some_logits()
    probability_V = reference_warp(reference_logits(logits_V, params, prompt, outputs), params).softmax(-1)
    drawn = repeat(logits_V, DRAWS, prompt, outputs, **asked, seed=11)
    assert not exceeds_chance(drawn, probability_V)
    # A distribution a little off is refused for the same draws: the test has power.
    off = count_penalties(probability_V.log(), [int(probability_V.argmax())], 0.1, 0).softmax(-1)
    assert exceeds_chance(drawn, off)


@pytest.mark.parametrize("samples", [2, 5])
def test_samples_of_a_request_are_distinct_and_independent(samples):
    bench = SamplerBench(VOCAB, samples)
    asked = resolved(VOCAB, temperature=1.0, seed=9)
    bench.start([starting(row, asked, sample_index=row) for row in range(samples)])
    count, rows = 4000, list(range(samples))
    drawn = [torch.tensor(bench.sample(torch.zeros(count, VOCAB), [row] * count, range(count))) for row in rows]
    for row in rows[1:]:
        pairs = drawn[0] * VOCAB + drawn[row]
        assert not exceeds_chance(pairs, torch.full((VOCAB**2,), 1 / VOCAB**2))
        assert (drawn[0] != drawn[row]).float().mean() > 0.9


def test_draws_at_neighbouring_positions_are_independent():
    drawn = repeat(torch.zeros(4), DRAWS, temperature=1.0, seed=5)
    assert not exceeds_chance(drawn[:-1] * 4 + drawn[1:], torch.full((16,), 1 / 16))


@pytest.mark.parametrize("what", ["position", "seed", "sample_index", "group", "purpose"])
def test_other_draws_differ(what):
    rows = list(range(64))

    def draws(value):
        bench = SamplerBench(VOCAB, 64)
        seed, index = (value * 64 if what == "seed" else 0), (value if what == "sample_index" else 0)
        asked = [resolved(VOCAB, temperature=1.0, seed=row + seed) for row in rows]
        bench.start([starting(row, asked[row], sample_index=index) for row in rows])
        position_R = torch.full((64,), value if what == "position" else 0)
        keywords = {what: value} if what in ("group", "purpose") else {}
        flags = SamplingFlags(Need.RANDOM)
        return sample(torch.zeros(64, VOCAB), bench.state, torch.tensor(rows), position_R, flags, **keywords)

    assert torch.equal(draws(0), draws(0))
    assert (draws(0) == draws(1)).sum().item() < 12  # 64 / 24 by chance


@pytest.mark.parametrize("asked", [{}, {"temperature": 1.0}], ids=["greedy", "sampled"])
def test_flags_that_no_row_needs_change_no_draw(asked):
    bench, rows = SamplerBench(VOCAB, 32), torch.arange(32)
    bench.start([starting(row, resolved(VOCAB, **asked, seed=row), [1, 2], outputs=[3, 4]) for row in range(32)])
    logits_RV = torch.randn(32, VOCAB, generator=torch.Generator().manual_seed(10))
    needed = Need.RANDOM if asked else 0
    plain = sample(logits_RV, bench.state, rows, rows, SamplingFlags(needed))
    for bit in range(31):
        flags = SamplingFlags(needed | 1 << bit)
        assert torch.equal(sample(logits_RV, bench.state, rows, rows, flags), plain), bit


def test_codes_are_drawn_as_each_row_wants_them():
    others = {"top_k": 2, "suppress_token_ids": (1, 2, 3)}  # which concern no code
    asked: list[dict[str, Any]] = [
        {"temperature": 0.7, "code_temperature": 1.9, **others},
        {"temperature": 0.7, "code_temperature": 0.2, "code_top_k": 7},
        {"temperature": 0.7, "code_temperature": 0.0},
        {"temperature": 0.0, "code_temperature": 1.0, "code_top_p": 0.5},
        {"temperature": 0.0},
    ]
    bench, rows_R = SamplerBench(VOCAB, 5), torch.arange(5)
    params = [resolved(VOCAB, seed=row, **one) for row, one in enumerate(asked)]
    bench.start([starting(row, one) for row, one in enumerate(params)])
    logits_RV = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(2)).bfloat16()
    together_R = draw(logits_RV, bench.state, rows_R, rows_R + 9, 2, merge_flags(map(flags_of, params)))
    assert torch.equal(draw(logits_RV, bench.state, rows_R, rows_R + 9, 2, SamplingFlags()), logits_RV.argmax(-1))
    for row, one in enumerate(asked):
        # As the first code is drawn from the same logits with these settings, but for the group that keys the noise.
        same = {name.removeprefix("code_"): value for name, value in one.items() if name.startswith("code_")}
        alone, which_R = SamplerBench(VOCAB, 5), rows_R[row : row + 1]
        alone.start([starting(row, resolved(VOCAB, seed=row, **({"temperature": 0.0} | same)))])
        expected_R = sample(logits_RV[row : row + 1].float(), alone.state, which_R, which_R + 9, EVERYTHING, group=2)
        assert together_R[row] == expected_R[0]


def test_the_kernel_gathers_the_positions_of_its_rows(monkeypatch: pytest.MonkeyPatch):
    """It is given those of all rows, and writes the ids in place."""
    limits = Limits.of("text", ArOptions(max_num_seqs=4, max_model_len=64), MODEL.shape)
    state = allocate_rows(CpuDevice(), MODEL, limits, torch.float32)
    state.columns.outputs.copy_(torch.arange(7, 12))  # the last is the null row

    def draw_positions(
        logits_RV: Tensor,
        sampling: SamplingState,
        rows_R: Tensor,
        position: Tensor,
        *,
        by_row: bool = False,
        out_R: Tensor,
    ) -> None:
        out_R.copy_(position[rows_R] if by_row else position)

    monkeypatch.setattr(phases, "runs_kernel", lambda logits_RV: True)
    monkeypatch.setattr(phases, "fused_sample", draw_positions)
    rows_R, ids_R = torch.tensor([2, 0]), torch.zeros(2, dtype=torch.int64)
    phases.sample_rows(state, torch.zeros(2, 5), rows_R, flags_of(GREEDY), None, (), ids_R)
    assert ids_R.tolist() == [9, 7]
