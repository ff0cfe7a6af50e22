"""The steps of a stage in a trace."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from omni.device import PhaseCategory
from omni.timeline.trace import MAIN, Interval, PhaseSpan, Trace


@dataclass(frozen=True, slots=True)
class Step:
    """One step. numbers: those of its host span. phases: of the stage's own stream, in the order in which they ran, at
    least one. beside: of its other streams."""

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
        """Whether rows decode and no prompt tokens run beside them. True without numbers from the host."""
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
