"""The data of a timeline: its spans, sets of times, and the steps of a stage. Times are nanoseconds of the host's monotonic clock
since the recording began.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise

from omni.device import PhaseCategory

MAIN = "main"
"""The lane of a stage's own stream. Other lanes have the rest of their stream's name: `copy`, `payload`."""

RECORDING = "recording"
"""A number of host spans: the nanoseconds in which phases were recorded, on a device that runs them later than it launches them."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The time from `start` up to `end`."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start

    def overlaps(self, other: "Interval") -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpan:
    """A launched phase. launched: the host's time of enqueueing it. ran: its run on the device, by the host's clock. step: of the
    launch, None outside of steps."""

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
    """A recording. phases: in the order of their launches. host: by their starts. device: the device's name. dropped: number of the
    oldest spans, lost since the buffer was full. unfinished: number of phases that had not run at the end. error: bound of the
    shift between launches and runs, in nanoseconds. started: the time 0, on the host's monotonic clock, which all processes of a
    host share."""

    device: str
    phases: tuple[PhaseSpan, ...]
    _: KW_ONLY
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


class Busy:
    """The union of intervals."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self.intervals: list[Interval] = []
        for one in sorted(intervals, key=lambda interval: interval.start):
            if self.intervals and one.start <= self.intervals[-1].end:
                last = self.intervals[-1]
                self.intervals[-1] = Interval(last.start, max(last.end, one.end))
            else:
                self.intervals.append(one)

    @property
    def total(self) -> int:
        return sum(one.length for one in self.intervals)

    def shared(self, other: "Busy") -> int:
        total, mine, theirs = 0, 0, 0
        while mine < len(self.intervals) and theirs < len(other.intervals):
            one, two = self.intervals[mine], other.intervals[theirs]
            total += max(0, min(one.end, two.end) - max(one.start, two.start))
            if one.end <= two.end:
                mine += 1
            else:
                theirs += 1
        return total

    def gaps(self, window: Interval) -> list[Interval]:
        """The parts of `window` outside the set."""
        first = bisect_right(self.intervals, window.start, key=lambda interval: interval.end)
        gaps, at = [], window.start
        for one in self.intervals[first:]:
            if one.start >= window.end:
                break
            if one.length:  # a moment divides no gap
                gaps.append(Interval(at, one.start))
                at = one.end
        gaps.append(Interval(at, window.end))
        return [gap for gap in gaps if gap.length > 0]


@dataclass(frozen=True, slots=True)
class Step:
    """One step. numbers: the numbers of its host span. phases: of the stage's own stream, in the order in which they ran, at least
    one. beside: of its other streams."""

    stage: str
    number: int
    numbers: Mapping[str, int]
    phases: tuple[PhaseSpan, ...]
    beside: tuple[PhaseSpan, ...]

    @property
    def ran(self) -> Interval:
        return Interval(self.phases[0].ran.start, max(span.ran.end for span in self.phases))

    @property
    def launched(self) -> Interval:
        spans = (*self.phases, *self.beside)
        return Interval(min(span.launched.start for span in spans), max(span.launched.end for span in spans))

    @property
    def decodes_only(self) -> bool:
        """Whether rows decode in the step and no prompt tokens run in it. True if the host recorded no numbers for the step."""
        return self.numbers.get("decodes", 1) > 0 and self.numbers.get("prefill", 0) == 0

    @property
    def token_point(self) -> int | None:
        """The time of the token point, on the device. None if the step has none."""
        return next((span.ran.start for span in self.phases if span.category is PhaseCategory.TOKEN_POINT), None)


def steps_of(trace: Trace, stage: str) -> tuple[Step, ...]:
    """The steps with phases on the stage's own stream, in the order in which they ran."""
    numbers: dict[int, dict[str, int]] = {}
    for host in trace.host:
        if host.stage == stage and "step" in host.numbers:
            numbers.setdefault(host.numbers["step"], {}).update(host.numbers)
    phases: dict[int, list[PhaseSpan]] = {}
    beside: dict[int, list[PhaseSpan]] = {}
    for span in trace.phases:
        if span.stage == stage and span.step is not None:
            (phases if span.lane == MAIN else beside).setdefault(span.step, []).append(span)
    steps = [
        Step(stage, number, numbers.get(number, {}), _as_run(spans), _as_run(beside.get(number, ())))
        for number, spans in phases.items()
    ]
    return tuple(sorted(steps, key=lambda step: step.ran.start))


def decode_pairs(steps: Sequence[Step]) -> list[tuple[Step, Step]]:
    """Pairs of consecutive steps that only decode."""
    return [
        (one, next_)
        for one, next_ in pairwise(steps)
        if one.number + 1 == next_.number and one.decodes_only and next_.decodes_only
    ]


def _as_run(spans: Sequence[PhaseSpan]) -> tuple[PhaseSpan, ...]:
    return tuple(sorted(spans, key=lambda span: span.ran.start))
