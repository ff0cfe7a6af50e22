"""Rows whose drafts are right with a probability, on a model of the device's part in their number."""

import random
from dataclasses import dataclass, field

from omni_ar.kernels.step.draft_reference import moved_rate
from omni_ar.kernels.step.draft_state import RATE_ONE, worthwhile_drafts
from omni_ar.run.draft_policy import DraftPolicy
from omni_ar.run.gain_history import GainHistory

DRAFTS, TOKENS = 3, 256


@dataclass
class ModelledRow:
    rate: int
    tokens: int = 0
    most: int = TOKENS
    cost: int = 0
    """Of a draft, as in `DraftState.costs`."""
    reports: GainHistory = field(default_factory=GainHistory)

    @classmethod
    def start(cls, policy: DraftPolicy, rows: int, most: int = TOKENS) -> "ModelledRow":
        """A row among `rows` rows."""
        costs = policy.costs(rows)
        row = cls(policy.start_rate, most=most, cost=0 if costs is None else costs[rows])
        row.reports.restart(policy.start_gain(rows), probe=policy.probe_steps)
        return row

    def step(self, verifies: bool, runs: bool, probability: float, draw: random.Random) -> None:
        """runs: whether the drafter does."""
        wanted, _ = worthwhile_drafts(self.rate, DRAFTS, DRAFTS, self.cost)
        verified, accepted = wanted if verifies else 0, 0
        for _ in range(max(verified, 1) if runs else 0):  # the first draft is compared in any case
            hit = draw.random() < probability
            self.rate = moved_rate(self.rate, RATE_ONE * hit)
            if not hit:
                break
            accepted += 1
        self.tokens += 1 + min(accepted, verified)
        self.reports.read()
        self.reports.report(worthwhile_drafts(self.rate, DRAFTS, DRAFTS, self.cost)[1], verifies=verifies)
