"""Tokens per second with drafters that have weights over those without a drafter, by the same model of the device as in
test_draft_speed.py. Times are assumed; some have been measured (benchmarks/results/2026-11-28-drafts-h200.md)."""

import random
from dataclasses import replace

import pytest

from omni_ar.model import ExpertShape, PassWeights
from omni_ar.run.draft_policy import DraftPolicy
from tests.stages.omni_ar.modelled_rows import DRAFTS, ModelledRow

MODELS = {
    "8b": PassWeights(16_400_000_000, 36),
    "30b": PassWeights(61_000_000_000, 48, ExpertShape(128, 8, 23.6)),
}
DRAFTERS = {
    "head": PassWeights(600_000_000, 4),
    "mtp": PassWeights(1_900_000_000, 4, ExpertShape(128, 8, 1.8)),
    "0.6b": PassWeights(1_190_000_000, 31),
}
ROWS = (1, 4, 16, 64)
ADDED = {
    ("8b", "head"): (0.36, 0.39, 0.5, 0.87),
    ("8b", "mtp"): (0.38, 0.44, 0.63, 1.07),
    ("8b", "0.6b"): (0.82, 0.85, 0.96, 1.34),
    ("30b", "head"): (1.44, 1.59, 0.74, 0.31),
    ("30b", "mtp"): (1.49, 1.64, 0.8, 0.37),
    ("30b", "0.6b"): (2.31, 2.04, 0.94, 0.45),
}
"""Time that the verification of three drafts adds, with so many rows."""
CASES = [(model, drafter, *at) for (model, drafter), added in ADDED.items() for at in zip(ROWS, added, strict=True)]


def policy_of(model: str, drafter: str) -> DraftPolicy:
    return DraftPolicy(DRAFTS, MODELS[model], True, DRAFTERS[drafter])


def speed(policy: DraftPolicy, rows: int, added: float, probability: float, tokens: int) -> float:
    """Of rows that begin together and have `tokens` tokens each, after the first 32."""
    draw, batch, time = random.Random(tokens), [ModelledRow.start(policy, rows, tokens) for _ in range(rows)], 0.0
    since = None
    while min(row.tokens for row in batch) < tokens:
        if since is None and min(row.tokens for row in batch) >= 32:
            since, time = sum(row.tokens for row in batch), 0.0
        verifies = policy.pays([row.reports.gain(0) for row in batch])
        for row in batch:
            row.step(verifies, verifies, probability, draw)
        time += 1.0 + added * verifies
    assert since is not None
    return (sum(row.tokens for row in batch) - since) / rows / time


def mean_speed(policy: DraftPolicy, rows: int, added: float, probability: float) -> float:
    speeds = [speed(policy, rows, added, probability, 400 + number) for number in range(max(3, 24 // rows))]
    return sum(speeds) / len(speeds)


@pytest.mark.parametrize(("model", "drafter", "rows", "added"), CASES)
@pytest.mark.parametrize("probability", [0.0, 0.2, 0.4, 0.6])
def test_drafts_that_do_not_pay_take_little_time(model: str, drafter: str, rows: int, added: float, probability: float):
    assert mean_speed(policy_of(model, drafter), rows, added, probability) > 0.97


@pytest.mark.parametrize(("model", "drafter", "rows", "added"), CASES)
@pytest.mark.parametrize("probability", [0.8, 0.9, 0.95])
def test_drafts_that_pay_well_are_verified(model: str, drafter: str, rows: int, added: float, probability: float):
    gain = sum(probability**number for number in range(1, DRAFTS + 1))
    best = (1 + gain) / (1 + added)
    if best > 1.25:
        assert mean_speed(policy_of(model, drafter), rows, added, probability) > 0.95 * best


def test_passes_count_by_what_they_read_and_by_their_layers():
    plain = DraftPolicy(DRAFTS, MODELS["8b"], True)
    added = [policy_of("8b", drafter).added_time(1) - plain.added_time(1) for drafter in DRAFTERS]
    assert 0 < added[0] < added[1] < added[2]
    whole = replace(plain, drafter=MODELS["8b"])
    assert whole.added_time(1) == pytest.approx(plain.added_time(1) + DRAFTS)
    assert replace(plain, drafter=PassWeights(0, 0)).added_time(1) == plain.added_time(1)


def test_a_step_of_many_experts_makes_passes_cheap():
    with_drafter, plain = policy_of("30b", "0.6b"), DraftPolicy(DRAFTS, MODELS["30b"], True)
    added = [with_drafter.added_time(rows) - plain.added_time(rows) for rows in (1, 4, 16, 64)]
    assert added == sorted(added, reverse=True)
    assert added[0] > 4 * added[-1]


@pytest.mark.parametrize(("model", "drafter"), [(model, drafter) for model in MODELS for drafter in DRAFTERS])
def test_rows_begin_with_drafts_whatever_these_cost(model: str, drafter: str):
    """A drafter that is not used cannot prove itself. But one that costs as much as the stage never pays."""
    policy = policy_of(model, drafter)
    for rows in (1, 3, 4, 20, 64):
        assert policy.pays([policy.start_gain(rows)] * rows)
    costly = replace(policy, drafter=MODELS[model])
    assert not costly.pays([costly.start_gain(1)])


def test_a_costly_drafter_is_tried_less_often():
    cheap, costly = (policy_of(*each).probe_steps for each in (("8b", "head"), ("30b", "0.6b")))
    assert cheap == 256
    assert 2 * cheap < costly < 3 * cheap
    assert DraftPolicy(DRAFTS, MODELS["30b"], True).probe_steps == 0
