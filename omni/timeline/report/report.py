"""The report of a trace. Times are microseconds."""

from collections.abc import Iterable

import msgspec

from omni.timeline.busy import Busy
from omni.timeline.report.order import LaunchOrder, launch_order
from omni.timeline.report.spread import Spread
from omni.timeline.report.stages import Decoding, decoding_of
from omni.timeline.trace import MAIN, PhaseSpan, Trace


class PhaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """phase: None for the sum of the category. launch: on the host. run: on the device."""

    stage: str
    lane: str
    category: str
    phase: str | None
    launch: Spread
    run: Spread


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    stage: str
    name: str
    took: Spread


class LaneReport(msgspec.Struct, frozen=True, kw_only=True):
    """A stream beside the main ones. busy: the time in which one of its phases ran. hidden: the share of that time in
    which the main stream of its stage (of any stage, if its stage has none) ran too, so that the stream delayed nothing
    by itself."""

    stage: str
    lane: str
    busy: float
    hidden: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """span: from the first launch to the end of the last run. error: bound of the shift between launches and runs.

    phases: by stage and lane, the phases of each category, followed by the category's sum if it has several.
    """

    device: str
    span: float
    error: float
    dropped: int
    unfinished: int
    phases: tuple[PhaseReport, ...]
    decoding: tuple[Decoding, ...]
    lanes: tuple[LaneReport, ...]
    host: tuple[HostReport, ...]
    order: LaunchOrder


def make_report(trace: Trace) -> Report:
    """The report of a trace. Stages without steps have phases only."""
    starts = [span.launched.start for span in trace.phases]
    ends = [span.ran.end for span in trace.phases]
    decoding = (decoding_of(trace, stage) for stage in trace.stages)
    return Report(
        device=trace.device,
        span=(max(ends, default=0) - min(starts, default=0)) / 1000,
        error=trace.error / 1000,
        dropped=trace.dropped,
        unfinished=trace.unfinished,
        phases=tuple(_phases(trace)),
        decoding=tuple(one for one in decoding if one is not None),
        lanes=tuple(_lanes(trace)),
        host=tuple(_host(trace)),
        order=launch_order(trace),
    )


def _phases(trace: Trace) -> Iterable[PhaseReport]:
    for stage in trace.stages:
        for lane in trace.lanes(stage):
            spans = [span for span in trace.phases if (span.stage, span.lane) == (stage, lane)]
            for category in dict.fromkeys(span.category for span in spans):
                inside = [span for span in spans if span.category is category]
                names = list(dict.fromkeys(span.phase for span in inside))
                for name in names:
                    yield _phase(stage, lane, name, [span for span in inside if span.phase == name])
                if len(names) > 1:
                    yield _phase(stage, lane, None, inside)


def _phase(stage: str, lane: str, phase: str | None, spans: list[PhaseSpan]) -> PhaseReport:
    launch = Spread.of([span.launched.length for span in spans])
    run = Spread.of([span.ran.length for span in spans])
    assert launch is not None
    assert run is not None
    category = spans[0].category.value
    return PhaseReport(stage=stage, lane=lane, category=category, phase=phase, launch=launch, run=run)


def _lanes(trace: Trace) -> Iterable[LaneReport]:
    main = {stage: [s.ran for s in trace.phases if (s.stage, s.lane) == (stage, MAIN)] for stage in trace.stages}
    for stage in trace.stages:
        lanes = trace.lanes(stage)
        beside = Busy(main[stage] if MAIN in lanes else [run for runs in main.values() for run in runs])
        for lane in lanes:
            if lane == MAIN:
                continue
            busy = Busy(span.ran for span in trace.phases if (span.stage, span.lane) == (stage, lane))
            hidden = busy.shared(beside) / busy.total if busy.total else 1.0
            yield LaneReport(stage=stage, lane=lane, busy=busy.total / 1000, hidden=hidden)


def _host(trace: Trace) -> Iterable[HostReport]:
    taken: dict[tuple[str, str], list[int]] = {}
    for span in trace.host:
        taken.setdefault((span.stage, span.name), []).append(span.took.length)
    for (stage, name), lengths in taken.items():
        took = Spread.of(lengths)
        assert took is not None
        yield HostReport(stage=stage, name=name, took=took)
