"""What a timeline holds. Times are nanoseconds of the host's monotonic clock since the recording began."""

from collections.abc import Mapping
from dataclasses import dataclass

from omni.device import PhaseCategory

MAIN = "main"
"""The lane of a stage's own stream. Others are called after what follows the stage's name in theirs: `copy`, `payload`."""


@dataclass(frozen=True, slots=True)
class Interval:
    """From `start` up to `end`."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start

    def overlaps(self, other: "Interval") -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A phase that was launched. launched: the host enqueued it then. ran: the device came to it then, by the host's clock.

    step: that the launch was a part of, None for those outside of steps.
    """

    stage: str
    lane: str
    phase: str
    category: PhaseCategory
    step: int | None
    launched: Interval
    ran: Interval


@dataclass(frozen=True, slots=True)
class HostSpan:
    """What the host did for a stage (`execute_model`, `sample_tokens`). numbers: what is known of it, such as `step`."""

    stage: str
    name: str
    numbers: Mapping[str, int]
    took: Interval


@dataclass(frozen=True, slots=True)
class Trace:
    """A recording. phases: in the order of their launches. host: by their starts.

    device: what it ran on. dropped: the oldest, for which there was no room. unfinished: those that had not run at the end.
    error: nanoseconds by which launches and runs may be shifted against each other.
    """

    device: str
    phases: tuple[PhaseSpan, ...]
    host: tuple[HostSpan, ...] = ()
    dropped: int = 0
    unfinished: int = 0
    error: int = 0

    @property
    def stages(self) -> tuple[str, ...]:
        """In the order in which they first appear."""
        return tuple(dict.fromkeys([*(span.stage for span in self.phases), *(span.stage for span in self.host)]))

    def lanes(self, stage: str) -> tuple[str, ...]:
        """The streams of a stage, its own first."""
        names = {span.lane for span in self.phases if span.stage == stage}
        return tuple(sorted(names, key=lambda name: (name != MAIN, name)))
