"""Rows whose drafts are right with a probability, on a model of the device's part in their number."""

import random
from dataclasses import dataclass, field

from omni_ar.kernels.step.draft_reference import moved_rate
from omni_ar.kernels.step.draft_state import LEAST_RATE, RATE_ONE, expected_gain
from omni_ar.run.gain_history import GainHistory

DRAFTS, TOKENS = 3, 256


@dataclass
class ModelledRow:
    rate: int
    tokens: int = 0
    most: int = TOKENS
    reports: GainHistory = field(default_factory=GainHistory)

    def step(self, verifies: bool, runs: bool, probability: float, draw: random.Random) -> None:
        """runs: whether the drafter does."""
        likely = self.rate >= LEAST_RATE
        verified, accepted = (DRAFTS if verifies and likely else 0), 0
        for _ in range(max(verified, 1) if runs else 0):  # the first draft is compared in any case
            hit = draw.random() < probability
            self.rate = moved_rate(self.rate, RATE_ONE * hit)
            if not hit:
                break
            accepted += 1
        self.tokens += 1 + min(accepted, verified)
        self.reports.read()
        self.reports.report(
            expected_gain(self.rate, DRAFTS, DRAFTS) if self.rate >= LEAST_RATE else 0, verifies=verifies
        )
