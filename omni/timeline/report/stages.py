"""Durations of a stage's decode steps."""

from collections.abc import Sequence

import msgspec
import numpy as np

from omni.device import PhaseCategory
from omni.timeline.busy import Busy
from omni.timeline.steps import Step, decode_pairs, steps_of
from omni.timeline.trace import MAIN, Interval, Trace


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds: percentiles, with linear interpolation, and the sum. count: number of values."""

    count: int
    p50: float
    p90: float
    p99: float
    total: float

    @classmethod
    def of(cls, nanoseconds: Sequence[int]) -> "Spread":
        """nanoseconds: at least one value."""
        values = np.asarray(nanoseconds, np.float64) / 1000
        p50, p90, p99 = (float(value) for value in np.percentile(values, [50, 90, 99]))
        return cls(count=len(nanoseconds), p50=p50, p90=p90, p99=p99, total=float(values.sum()))


class Decoding(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that only decode. Between two consecutive ones, all None without such pairs:

    period: on the device, from the start of one to the start of the next.
    idle: time in which nothing of the stage's stream ran, from the last phase of one to the first of the next.
    launch_gap: on the host, from the end of one's last launch to the next one's first.
    launch_period: on the host, from first launch to first launch.
    behind_token: on the device, from the token point of one to the start of the next: the delay beside the wait for
        tokens.

    Inside one:

    waits: time in which nothing of the stage's stream ran because the host was late.
    categories: time on the stage's stream by category.
    """

    stage: str
    steps: int
    period: Spread | None
    idle: Spread | None
    launch_gap: Spread | None
    launch_period: Spread | None
    waits: Spread | None
    behind_token: Spread | None
    categories: dict[str, Spread]


def decoding_of(trace: Trace, stage: str) -> Decoding | None:
    """The statistics; None for a stage without decode-only steps."""
    steps = steps_of(trace, stage)
    decodes = [step for step in steps if step.decodes_only]
    if not decodes:
        return None
    pairs = decode_pairs(steps)
    main = Busy(span.ran for span in trace.on(stage, MAIN))
    return Decoding(
        stage=stage,
        steps=len(decodes),
        period=_spread([two.ran.start - one.ran.start for one, two in pairs]),
        idle=_spread([_idle(main, one, two) for one, two in pairs]),
        launch_gap=_spread([two.launched.start - one.launched.end for one, two in pairs]),
        launch_period=_spread([two.launched.start - one.launched.start for one, two in pairs]),
        waits=_spread([sum(gap.length for gap in main.gaps(step.ran)) for step in decodes]),
        behind_token=_spread([two.ran.start - at for one, two in pairs if (at := one.token_point) is not None]),
        categories=_categories(decodes),
    )


def _spread(nanoseconds: Sequence[int]) -> Spread | None:
    return Spread.of(nanoseconds) if nanoseconds else None


def _idle(main: Busy, one: Step, two: Step) -> int:
    """Idle time between two steps. Phases that belong to no step may run in it."""
    if two.ran.start <= one.ran.end:
        return 0
    return sum(gap.length for gap in main.gaps(Interval(one.ran.end, two.ran.start)))


def _categories(steps: Sequence[Step]) -> dict[str, Spread]:
    taken: dict[PhaseCategory, list[int]] = {}
    for step in steps:
        sums: dict[PhaseCategory, int] = {}
        for span in step.phases:
            if span.category is PhaseCategory.TOKEN_POINT:
                continue  # a moment, which has no duration
            sums[span.category] = sums.get(span.category, 0) + span.ran.length
        for category, length in sums.items():
            taken.setdefault(category, []).append(length)
    return {category.value: Spread.of(taken[category]) for category in PhaseCategory if category in taken}
