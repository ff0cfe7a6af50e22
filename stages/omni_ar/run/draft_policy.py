"""Whether a step verifies drafts: the tokens that they are expected to add, against the time that their positions take."""

from collections.abc import Sequence
from dataclasses import dataclass

from omni_ar.drafters import Drafter, PagedDrafter
from omni_ar.kernels.step.draft_state import RATE_ONE, expected_gain
from omni_ar.model import ArShape, ExpertShape
from omni_ar.run.limits import Limits

_ROOM = 0.2
"""Time that room for drafts adds to a step, relative to one without, however many positions it has. Measured are 0.13 to 0.23 with
three drafts of 1 to 64 rows (benchmarks/results/2026-11-28-drafts-h200.md)."""
_POSITION = 1 / 300
"""Time that a position adds, relative to reading the weights that it is multiplied by: a dense model of 8 billion parameters takes
1.21 times as long with 64 rows as with one, without keys and values (benchmarks/results/2026-11-22-decode-h200.md)."""
_OTHER_WEIGHTS = 2.6
"""Time of a step but for its experts, relative to that of reading the other weights; measured at one row."""


@dataclass(frozen=True, slots=True)
class DraftPolicy:
    """drafts: maximum of a row in one step; 0 without a drafter. experts: of the model. adaptive: False if all drafts count as
    worth their time. has_weights: whether the drafter has, and so runs only if its drafts are likely to be verified."""

    drafts: int
    experts: ExpertShape | None
    adaptive: bool
    has_weights: bool

    @classmethod
    def of(cls, limits: Limits, shape: ArShape, drafter: Drafter | None) -> "DraftPolicy":
        return cls(limits.drafts, shape.experts, limits.adaptive_drafts, isinstance(drafter, PagedDrafter))

    @property
    def start_rate(self) -> int:
        """`DraftFields.rate` of a row at its start. A drafter without weights runs in every step: where further experts cost
        much, it proves itself before any draft is verified. One with weights could not."""
        return RATE_ONE * 3 // 4 if self.has_weights and self.experts is not None else RATE_ONE // 2

    @property
    def start_gain(self) -> int:
        """`DraftHandoffFields.gain` of a row at its start."""
        return expected_gain(self.start_rate, self.drafts, self.drafts) if self.adaptive else self.drafts * RATE_ONE

    def pays(self, gains: Sequence[int]) -> bool:
        """Whether a decode step verifies drafts. gains: of each row, as in `DraftHandoffFields`."""
        gain = sum(gains) / RATE_ONE
        return gain > 0 and gain >= self.added_time(len(gains)) * len(gains)

    def added_time(self, rows: int) -> float:
        """Time that drafts add to a decode step of `rows` rows, relative to one without; a drafter's own time is not in it. For
        experts it is an upper bound, as if tokens chose at random: those that follow each other share some."""
        if not self.adaptive:
            return 0.0
        positions = rows * self.drafts * _POSITION / (1 + rows * _POSITION)
        experts = self.experts
        if experts is None:
            return _ROOM + positions
        share, share_with = experts.share_used(rows), experts.share_used(rows * (1 + self.drafts))
        # Of the weights that the step reads, a position is multiplied by those of its own experts.
        own = (1 + experts.weights * experts.top_k / experts.num_experts) / (1 + experts.weights * share)
        return _ROOM + positions * own + (share_with - share) / (_OTHER_WEIGHTS / experts.weights + share)
