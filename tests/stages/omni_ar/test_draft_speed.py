"""Tokens per second with drafts over those without, by a model of the device: rows whose drafts are right with a probability,
and the times that an H200 takes for steps that verify drafts and others (benchmarks/results/2026-11-28-drafts-h200.md and
2026-11-29-drafts-h200.md)."""

import random
from dataclasses import replace

import pytest

from omni_ar.kernels.step.draft_state import worthwhile_drafts
from omni_ar.model import ExpertShape, PassWeights
from omni_ar.run.draft_policy import _OTHER_WEIGHTS, DraftPolicy
from tests.stages.omni_ar.modelled_rows import DRAFTS, TOKENS, ModelledRow

EXPERTS = DraftPolicy(DRAFTS, PassWeights(61_000_000_000, 48, ExpertShape(128, 8, 23.6)), adaptive=True)
DENSE = DraftPolicy(DRAFTS, PassWeights(16_400_000_000, 36), adaptive=True)


def speed(policy: DraftPolicy, rows: int, added: float, probability: float, seed: int) -> float:
    draw, batch, time = random.Random(seed), [ModelledRow.start(policy, rows) for _ in range(rows)], 0.0
    while min(row.tokens for row in batch) < TOKENS:
        verifies = policy.pays([row.reports.gain(0) for row in batch])
        for row in batch:
            row.step(verifies, True, probability, draw)
        time += 1.0 + added * verifies
    return sum(row.tokens for row in batch) / rows / time


def speed_after_a_bad_start(policy: DraftPolicy, rows: int, added: float, probability: float, bad: int) -> float:
    """Tokens per second of a drafter with weights, from 500 steps after `bad` steps on, in which its drafts are wrong. Rows
    end after 128 or 256 tokens and others begin, as in a server."""
    draw, time, tokens = random.Random(rows), 0.0, 0

    def started() -> ModelledRow:
        return ModelledRow.start(policy, rows, draw.choice((128, 256)))

    batch = [started() for _ in range(rows)]
    for number in range(bad + 1500):
        verifies = policy.pays([row.reports.gain(0) for row in batch])
        before = sum(row.tokens for row in batch)
        for row in batch:
            row.step(verifies, verifies, probability if number >= bad else 0.0, draw)
        if number >= bad + 500:
            time += 1.0 + added * verifies
            tokens += sum(row.tokens for row in batch) - before
        batch = [row if row.tokens < row.most else started() for row in batch]
    return tokens / rows / time


# Rows, and the time that the verification of three drafts was measured to add.
CASES = [
    (EXPERTS, 1, 0.48),
    (EXPERTS, 4, 0.14),
    (EXPERTS, 16, 0.13),
    (EXPERTS, 64, 0.21),
    (DENSE, 1, 0.23),
    (DENSE, 8, 0.16),
]
NAMES = [f"{'experts' if policy.weights.experts else 'dense'}-{rows}" for policy, rows, _ in CASES]


@pytest.mark.parametrize(("policy", "rows", "added"), CASES, ids=NAMES)
@pytest.mark.parametrize("probability", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
def test_drafts_that_are_often_wrong_take_little_time(policy: DraftPolicy, rows: int, added: float, probability: float):
    speeds = [speed(policy, rows, added, probability, seed) for seed in range(max(3, 40 // rows))]
    assert sum(speeds) / len(speeds) > (0.98 if policy.weights.experts else 0.97)


def speed_by_experts(policy: DraftPolicy, rows: int, probability: float, seed: int, shared: float) -> float:
    """The time of a step follows from the drafts that its rows verify. shared: of the experts that random choices would use
    besides, the share that a row's tokens have in common."""
    draw, batch, time = random.Random(seed), [ModelledRow.start(policy, rows) for _ in range(rows)], 0.0
    experts = policy.weights.experts
    assert experts is not None
    while min(row.tokens for row in batch) < TOKENS:
        verifies = policy.pays([row.reports.gain(0) for row in batch])
        drafts = [worthwhile_drafts(row.rate, DRAFTS, DRAFTS, row.cost)[0] * verifies for row in batch]
        further = experts.share_used(rows + sum(drafts)) - experts.share_used(rows)
        reading = (1 - shared) * further / (_OTHER_WEIGHTS / experts.weights + experts.share_used(rows))
        time += 1.0 + (policy._fixed_time(rows) + reading) * verifies
        for row in batch:
            row.step(verifies, True, probability, draw)
    return sum(row.tokens for row in batch) / rows / time


@pytest.mark.parametrize(("shared", "least"), [(0.0, 0.95), (0.5, 0.98)])
@pytest.mark.parametrize("probability", [0.0, 0.45, 0.5, 0.55, 0.6])
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_a_row_whose_tokens_share_few_experts_loses_little(rows: int, probability: float, shared: float, least: float):
    """The rule counts half of the experts of random choices: it is right for a share of 0.5, and loses a little below it."""
    speeds = [speed_by_experts(EXPERTS, rows, probability, seed, shared) for seed in range(max(3, 40 // rows))]
    assert sum(speeds) / len(speeds) > least


@pytest.mark.parametrize(
    ("policy", "rows", "added", "least"), [(EXPERTS, 1, 0.48, 1.4), (EXPERTS, 16, 0.13, 2.0), (DENSE, 1, 0.23, 1.9)]
)
def test_drafts_that_are_mostly_right_are_verified(policy: DraftPolicy, rows: int, added: float, least: float):
    speeds = [speed(policy, rows, added, 0.7, seed) for seed in range(max(3, 40 // rows))]
    assert sum(speeds) / len(speeds) > least


@pytest.mark.parametrize(
    ("policy", "rows", "added", "probability", "least"),
    [
        (DENSE, 4, 0.16, 0.7, 2.0),
        (DENSE, 32, 0.3, 0.7, 1.8),
        (EXPERTS, 24, 0.15, 0.7, 1.9),
        (EXPERTS, 64, 0.21, 0.5, 1.4),
    ],
)
@pytest.mark.parametrize("bad", [0, 300])
def test_a_drafter_with_weights_is_used_again_when_its_drafts_are_right(
    policy: DraftPolicy, rows: int, added: float, probability: float, least: float, bad: int
):
    """It runs only in steps that verify drafts. Rows that begin, and those that it is tried again for, bring such steps back."""
    weighty = replace(policy, drafter=PassWeights(0, 1))
    assert speed_after_a_bad_start(weighty, rows, added, probability, bad) > least
