"""Whether a step verifies drafts: the tokens that they are expected to add, against the time that their positions take."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from omni.stage import module_bytes
from omni_ar.drafters import Drafter, PagedDrafter
from omni_ar.kernels.step.draft_state import RATE_ONE, worthwhile_drafts
from omni_ar.model import ArModel, PassWeights
from omni_ar.run.gain_history import PROBE
from omni_ar.run.limits import Limits

_VERIFICATION = 0.2
"""Time that the verification of drafts adds to a step, relative to one without, however many positions it has. Measured are
0.13 to 0.23 with three drafts of 1 to 64 rows (benchmarks/results/2026-11-28-drafts-h200.md)."""
_POSITION = 1 / 300
"""Time that a position adds, relative to reading the weights that it is multiplied by: a dense model of 8 billion parameters takes
1.21 times as long with 64 rows as with one, without keys and values (benchmarks/results/2026-11-22-decode-h200.md)."""
_OTHER_WEIGHTS = 2.6
"""Time of a step but for its experts, relative to that of reading the other weights; measured at one row."""
_LAYER_BYTES = 90_000_000
"""Bytes that could be read in the time that a layer takes besides reading its weights: by the times of steps of one row on an H200,
with 4.8 TB/s, 64 (28 layers of 0.6 billion parameters), 90 (48 of 30 billion) and 117 MB (36 of 8 billion)
(benchmarks/results/2026-11-28-drafts-h200.md)."""
_MARGIN = 1.2
"""Rows start with a rate for which drafts are worth this factor of their time, with each of these numbers of rows."""
_ROWS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class DraftPolicy:
    """drafts: maximum of a row in one step; 0 without a drafter. weights: of the model's steps. adaptive: False if all drafts count
    as worth their time. drafter: weights of the passes that make a draft each; None for a drafter without weights. One with weights
    runs only if its drafts are likely to be verified."""

    drafts: int
    weights: PassWeights
    adaptive: bool
    drafter: PassWeights | None = None

    @classmethod
    def of(cls, limits: Limits, model: ArModel, drafter: Drafter | None) -> "DraftPolicy":
        weights = PassWeights(module_bytes(model), model.shape.num_kv_layers, model.shape.experts)
        passes = drafter.pass_weights if isinstance(drafter, PagedDrafter) else None
        return cls(limits.drafts, weights, limits.adaptive_drafts, passes)

    @property
    def has_weights(self) -> bool:
        """Whether the drafter has weights."""
        return self.drafter is not None

    @cached_property
    def start_rate(self) -> int:
        """`DraftFields.rate` of a row at its start. A drafter without weights runs in every step: where drafts cost much, it proves
        itself before any draft is verified. One with weights could not."""
        if not self.has_weights:
            return RATE_ONE // 2
        rates = (RATE_ONE * sixteenths // 16 for sixteenths in range(8, 16))
        return next((rate for rate in rates if all(map(partial(self._starts, rate), _ROWS))), RATE_ONE * 15 // 16)

    def start_gain(self, rows: int) -> int:
        """`DraftHandoffFields.gain` of a row at its start, among `rows` rows."""
        return self._gain(self.start_rate, rows) if self.adaptive else self.drafts * RATE_ONE

    @cached_property
    def probe_steps(self) -> int:
        """Number of steps that verify no drafts after which a row's are verified for a few steps, the first time: more if drafts
        add more than the time of a step. 0 if the drafter runs in every step."""
        return round(PROBE * max(1.0, self._most_added)) if self.has_weights else 0

    def pays(self, gains: Sequence[int]) -> bool:
        """Whether a decode step verifies drafts. gains: of each row, as in `DraftHandoffFields`."""
        gain = sum(gains) / RATE_ONE
        return gain > 0 and gain >= self._fixed_time(len(gains)) * len(gains)

    def added_time(self, rows: int) -> float:
        """Time that drafts add to a decode step of `rows` rows that verify all of theirs, relative to one without. For experts it
        is an upper bound, as if tokens chose at random: those that follow each other share some."""
        return self._fixed_time(rows) + self._experts_time(rows)

    def costs(self, rows: int) -> list[int] | None:
        """`DraftState.costs` of a stage with so many rows. Without `adaptive` they are 0."""
        if not self.drafts or self.weights.experts is None:
            return None
        return [self._cost(max(active, 1)) for active in range(rows + 1)]

    def _cost(self, rows: int) -> int:
        return round(RATE_ONE * self._experts_time(rows) / max(self.drafts, 1))

    def _fixed_time(self, rows: int) -> float:
        """Of `added_time`: what a step with positions for drafts adds, however many of them are verified."""
        if not self.adaptive:
            return 0.0
        experts, position = self.weights.experts, _POSITION
        if experts is not None:
            # Of the weights that the step reads, a position is multiplied by those of its own experts.
            position *= 1 + experts.weights * experts.top_k / experts.num_experts
            position /= 1 + experts.weights * experts.share_used(rows)
        positions = rows * self.drafts * position / (1 + rows * position)
        return _VERIFICATION + positions + self.drafts * self._pass_time(rows)

    def _experts_time(self, rows: int) -> float:
        """Of `added_time`: reading the further experts of all drafts."""
        experts = self.weights.experts
        if not self.adaptive or experts is None:
            return 0.0
        share, share_with = experts.share_used(rows), experts.share_used(rows * (1 + self.drafts))
        return (share_with - share) / (_OTHER_WEIGHTS / experts.weights + share)

    def _pass_time(self, rows: int) -> float:
        """Time of a pass of a drafter with weights, relative to a step of the model."""
        if self.drafter is None:
            return 0.0
        step, each = (of.read(rows) + of.layers * _LAYER_BYTES for of in (self.weights, self.drafter))
        return each / step

    @cached_property
    def _most_added(self) -> float:
        return max(map(self.added_time, _ROWS))

    def _starts(self, rate: int, rows: int) -> bool:
        """Whether drafts are worth enough for so many rows to start with this rate."""
        return self._gain(rate, rows) >= RATE_ONE * (_MARGIN * self.added_time(rows) - self._experts_time(rows))

    def _gain(self, rate: int, rows: int) -> int:
        return worthwhile_drafts(rate, self.drafts, self.drafts, self._cost(rows))[1]
