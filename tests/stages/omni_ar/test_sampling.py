"""Draws: their distribution, and what they do and do not depend on."""

from dataclasses import fields

import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from omni_ar.sampling import SamplingFlags, SamplingState, sample

VOCAB = 24
ALL = SamplingFlags(any_random=True, any_top_k=True, any_top_p=True, any_penalty=True, any_suppressed=True)
RANDOM = SamplingFlags(any_random=True, any_top_k=False, any_top_p=False, any_penalty=False, any_suppressed=False)
GREEDY = SamplingFlags(any_random=False, any_top_k=False, any_top_p=False, any_penalty=False, any_suppressed=False)


def allocate(rows, vocab=VOCAB):
    return SamplingState.allocate(lambda shape, dtype: torch.zeros(shape, dtype=dtype), rows, vocab)


def fill(state, **settings):
    """Sets columns of all rows; what is not named is off."""
    for name, value in {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "penalty": 1.0, **settings}.items():
        getattr(state, name).copy_(torch.as_tensor(value))
    return state


def random_state(rows, seed):
    """Rows that differ in everything, some greedy."""
    generator = torch.Generator().manual_seed(seed)
    state = allocate(rows)
    fill(
        state,
        temperature=torch.rand(rows, generator=generator) + 0.5,
        top_k=torch.randint(0, 9, (rows,), generator=generator),
        top_p=torch.rand(rows, generator=generator) * 0.5 + 0.5,
        penalty=torch.rand(rows, generator=generator) + 0.5,
        seed=torch.randint(-(2**62), 2**62, (rows,), generator=generator),
        sample_index=torch.randint(0, 3, (rows,), generator=generator),
        seen=torch.rand(rows, VOCAB, generator=generator) < 0.3,
        suppressed=torch.rand(rows, VOCAB, generator=generator) < 0.2,
    )
    state.temperature[::5] = 0
    return state, torch.randn(rows, VOCAB, generator=generator) * 2


def repeat(logits, count, **settings):
    """One draw at each of `count` positions."""
    state = fill(allocate(1, len(logits)), **settings)
    rows, position = torch.zeros(count, dtype=torch.int64), torch.arange(count)
    return sample(logits.expand(count, -1), state, rows, position, ALL)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.6, 0, 1.0), (1.4, 6, 1.0), (1.0, 0, 0.7), (0.9, 10, 0.8)]
)
def test_draws_follow_the_warped_distribution(temperature, top_k, top_p):
    count = 40_000
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3))
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    probability = warpers(torch.zeros(1, 0, dtype=torch.int64), logits[None])[0].softmax(-1).double()
    drawn = repeat(logits, count, temperature=temperature, top_k=top_k, top_p=top_p, seed=11)
    observed = torch.bincount(drawn, minlength=VOCAB).double()
    assert observed[probability == 0].sum() == 0
    expected = probability[probability > 0] * count
    assert expected.min() > 5  # else chi-square does not apply
    chi_square = ((observed[probability > 0] - expected) ** 2 / expected).sum().item()
    freedom = len(expected) - 1
    # Wilson-Hilferty bound of the 99.9 % quantile.
    assert chi_square < freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3


def test_draws_at_neighbouring_positions_are_independent():
    drawn = repeat(torch.zeros(4), 40_000, seed=5)
    pairs = torch.bincount(drawn[:-1] * 4 + drawn[1:], minlength=16).double()
    expected = pairs.sum() / 16
    assert ((pairs - expected) ** 2 / expected).sum().item() < 37.7  # 99.9 % quantile, 15 degrees of freedom


def test_a_row_draws_the_same_alone_and_in_any_batch():
    rows = 23
    state, logits = random_state(rows, seed=4)
    position = torch.arange(rows) * 3
    together = sample(logits, state, torch.arange(rows), position, ALL)
    assert together.unique().numel() > 5
    shuffled = torch.randperm(rows, generator=torch.Generator().manual_seed(5))
    assert torch.equal(sample(logits[shuffled], state, shuffled, position[shuffled], ALL), together[shuffled])
    for row in range(rows):
        one = torch.tensor([row])
        assert sample(logits[one], state, one, position[one], ALL) == together[row]


def test_a_draw_does_not_depend_on_the_row_that_holds_the_request():
    state, logits = random_state(4, seed=6)
    moved = allocate(4)
    for field in fields(state):
        getattr(moved, field.name).copy_(getattr(state, field.name).flip(0))
    rows, position = torch.arange(4), torch.arange(4)
    expected = sample(logits, state, rows, position, ALL)
    assert torch.equal(sample(logits, moved, rows.flip(0), position, ALL), expected)


def test_sampling_twice_gives_the_same_and_leaves_its_inputs():
    state, logits = random_state(16, seed=7)
    before = [logits.clone(), *(getattr(state, field.name).clone() for field in fields(state))]
    first, second = (sample(logits, state, torch.arange(16), torch.arange(16), ALL) for _ in range(2))
    assert torch.equal(first, second)
    after = [logits, *(getattr(state, field.name) for field in fields(state))]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize("what", ["position", "seed", "sample_index", "group", "purpose"])
def test_other_draws_differ(what):
    logits = torch.zeros(64, VOCAB)
    rows, zeros = torch.arange(64), torch.zeros(64, dtype=torch.int64)
    state = fill(allocate(64), seed=torch.arange(64))

    def draw(value):
        other = fill(allocate(64), seed=torch.arange(64) + (64 * value if what == "seed" else 0))
        other.sample_index.fill_(value if what == "sample_index" else 0)
        position = zeros + (value if what == "position" else 0)
        keywords = {what: value} if what in ("group", "purpose") else {}
        return sample(logits, other, rows, position, RANDOM, **keywords)

    first, second = draw(0), draw(1)
    assert torch.equal(first, sample(logits, state, rows, zeros, RANDOM))
    agreements = (first == second).sum().item()
    assert agreements < 12  # 64 / 24 by chance


def test_greedy_rows_take_the_best_allowed_id_whatever_their_other_settings():
    state, logits = random_state(10, seed=8)
    state.temperature.zero_()
    penalized = torch.where(logits < 0, logits * state.penalty[:, None], logits / state.penalty[:, None])
    expected = torch.where(state.seen, penalized, logits).masked_fill(state.suppressed, float("-inf")).argmax(-1)
    assert not torch.equal(expected, logits.argmax(-1))
    for flags in (ALL, SamplingFlags(**{**flag_values(ALL), "any_random": False})):
        assert torch.equal(sample(logits, state, torch.arange(10), torch.arange(10), flags), expected)


def test_greedy_without_any_work_is_argmax():
    state, logits = random_state(6, seed=9)
    assert torch.equal(sample(logits, state, torch.arange(6), torch.arange(6), GREEDY), logits.argmax(-1))


@pytest.mark.parametrize("flag", [field.name for field in fields(SamplingFlags) if field.name != "any_random"])
def test_a_needless_flag_changes_no_draw(flag):
    logits = torch.randn(32, VOCAB, generator=torch.Generator().manual_seed(10))
    state = fill(allocate(32), seed=torch.arange(32))
    rows = torch.arange(32)
    with_flag = SamplingFlags(**{**flag_values(RANDOM), flag: True})
    assert torch.equal(sample(logits, state, rows, rows, with_flag), sample(logits, state, rows, rows, RANDOM))


def test_suppressed_ids_are_never_drawn():
    suppressed = torch.arange(VOCAB)[None] < VOCAB - 2
    drawn = repeat(torch.zeros(VOCAB), 500, suppressed=suppressed, seed=12)
    assert sorted(drawn.unique().tolist()) == [VOCAB - 2, VOCAB - 1]


def flag_values(flags):
    return {field.name: getattr(flags, field.name) for field in fields(flags)}
