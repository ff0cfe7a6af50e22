"""The data of a timeline. Times are nanoseconds of the host's monotonic clock since the recording began."""

from collections.abc import Mapping
from dataclasses import dataclass

from omni.device import PhaseCategory

MAIN = "main"
"""The lane of a stage's own stream. Other lanes have the rest of their stream's name: `copy`, `payload`."""


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
    """A launched phase. launched: the host's time of enqueueing it. ran: its run on the device, by the host's clock.

    step: the step of the launch, None outside of steps.
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
    """Host work for a stage (`execute_model`, `sample_tokens`). numbers: properties such as `step`."""

    stage: str
    name: str
    numbers: Mapping[str, int]
    took: Interval


@dataclass(frozen=True, slots=True)
class Trace:
    """A recording. phases: in the order of their launches. host: by their starts.

    device: the device's name. dropped: number of the oldest spans, lost for lack of room. unfinished: number of phases
    that had not run at the end. error: bound of the shift between launches and runs, in nanoseconds.
    started: the time 0, on the host's monotonic clock, which all processes of a host share.
    """

    device: str
    phases: tuple[PhaseSpan, ...]
    host: tuple[HostSpan, ...] = ()
    dropped: int = 0
    unfinished: int = 0
    error: int = 0
    started: int = 0

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages, in the order of their first phases."""
        return tuple(dict.fromkeys([*(span.stage for span in self.phases), *(span.stage for span in self.host)]))

    def on(self, stage: str, lane: str) -> list[PhaseSpan]:
        """The phases of one stream."""
        return [span for span in self.phases if (span.stage, span.lane) == (stage, lane)]

    def lanes(self, stage: str) -> tuple[str, ...]:
        """The streams of a stage, its own first."""
        names = {span.lane for span in self.phases if span.stage == stage}
        return tuple(sorted(names, key=lambda name: (name != MAIN, name)))
