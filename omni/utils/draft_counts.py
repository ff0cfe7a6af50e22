"""Counts of drafts that steps of a stage have verified: of a request, of a step, or in total."""

from collections.abc import Mapping
from typing import Self

_STEPS, _DRAFTED, _ACCEPTED = "drafted_steps", "drafted_tokens", "accepted_drafts"


class DraftCounts:
    """drafted, accepted: number of verified and of accepted drafts by position, the first of a step first."""

    def __init__(self, positions: int = 0) -> None:
        """positions: those that are counted from the beginning; further ones are added as they occur."""
        self.drafted = [0] * positions
        self.accepted = [0] * positions

    @classmethod
    def of(cls, numbers: Mapping[str, int]) -> Self:
        """The counts in the result of `numbers`, in `StageMetrics.counts` or in `Omni.counters()` of a stage. Other names are
        ignored."""
        counts = cls()
        while (drafted := numbers.get(f"{_DRAFTED}_{len(counts.drafted) + 1}")) is not None:
            counts.accepted.append(numbers.get(f"{_ACCEPTED}_{len(counts.drafted) + 1}", 0))
            counts.drafted.append(drafted)
        return counts

    def add(self, drafted: int, accepted: int) -> None:
        """Counts the drafts of one row in one step."""
        self._extend(drafted)
        for position in range(drafted):
            self.drafted[position] += 1
            self.accepted[position] += position < accepted

    def merge(self, other: "DraftCounts") -> None:
        self._extend(len(other.drafted))
        for position, (drafted, accepted) in enumerate(zip(other.drafted, other.accepted, strict=True)):
            self.drafted[position] += drafted
            self.accepted[position] += accepted

    def numbers(self) -> dict[str, int]:
        """Counts by name, positions from 1; empty without a position."""
        if not self.drafted:
            return {}
        numbers = {_STEPS: self.steps, _DRAFTED: sum(self.drafted), _ACCEPTED: sum(self.accepted)}
        for position, (drafted, accepted) in enumerate(zip(self.drafted, self.accepted, strict=True), 1):
            numbers |= {f"{_DRAFTED}_{position}": drafted, f"{_ACCEPTED}_{position}": accepted}
        return numbers

    @property
    def steps(self) -> int:
        """Number of times that a step verified drafts of a row."""
        return self.drafted[0] if self.drafted else 0

    @property
    def acceptance(self) -> tuple[float, ...]:
        """The share of the verified drafts that were accepted, by position, up to the last position with any."""
        counts = zip(self.drafted, self.accepted, strict=True)
        return tuple(accepted / drafted for drafted, accepted in counts if drafted)

    @property
    def mean_length(self) -> float | None:
        """Mean number of tokens that such a step gives a row. None without any."""
        return (self.steps + sum(self.accepted)) / self.steps if self.steps else None

    def __str__(self) -> str:
        """`"2.40 tokens per step with drafts (14 of 30 accepted, by position 80% 40% 20%)"`; empty without a position."""
        if self.mean_length is None:
            return "no drafts verified" if self.drafted else ""
        shares = " ".join(f"{share:.0%}" for share in self.acceptance)
        counts = f"{sum(self.accepted)} of {sum(self.drafted)} accepted, by position {shares}"
        return f"{self.mean_length:.2f} tokens per step with drafts ({counts})"

    def _extend(self, positions: int) -> None:
        missing = [0] * (positions - len(self.drafted))
        self.drafted += missing
        self.accepted += missing
