"""Whether drafts pay: the tokens that they are expected to add, against the time that their positions take."""

from collections.abc import Sequence
from dataclasses import dataclass

from omni_ar.kernels.step.draft_state import RATE_ONE
from omni_ar.model import ExpertShape

_POSITIONS = 0.2
"""Time that the positions of drafts add to a step, relative to a step without them, whatever their number; without that of further
experts. Measured are 0.13 to 0.21 for three drafts of 1 to 64 rows (benchmarks/results/2026-11-26-drafts-h200.md)."""
_OTHER_WEIGHTS = 2.6
"""Time for the rest of a step, relative to that of reading its weights without experts (measured at one row)."""
_FURTHER_EXPERTS = 0.75
"""Further experts that positions of drafts use, relative to random choices: tokens that follow each other share some (measured at
one row: 0.78)."""


@dataclass(frozen=True, slots=True)
class DraftCost:
    """positions: of a row in a step with drafts. experts: of the model. adaptive: False if all drafts count as worth their time."""

    positions: int
    experts: ExpertShape | None
    adaptive: bool = True

    def added_time(self, rows: int) -> float:
        """Time that drafts add to a decode step of `rows` rows, relative to one without."""
        if not self.adaptive:
            return 0.0
        experts = self.experts
        if experts is None:
            return _POSITIONS
        used, used_with = experts.distinct(rows), experts.distinct(rows * self.positions)
        return _POSITIONS + _FURTHER_EXPERTS * (used_with - used) / (_OTHER_WEIGHTS / experts.weights + used)

    def pays(self, gains: Sequence[int]) -> bool:
        """Whether a step of these rows verifies drafts. gains: `DraftHandoffFields.gain` of each row."""
        gain = sum(gains) / RATE_ONE
        return gain > 0 and gain >= self.added_time(len(gains)) * len(gains)
