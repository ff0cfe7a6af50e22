"""The report of a trace. Times are microseconds."""

from collections.abc import Iterable

import msgspec

from omni.timeline.busy import Busy
from omni.timeline.report.stages import Decoding, Spread, decoding_of
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


class LaunchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """overtaken: number of phases that began after a later launch had finished on another stream. This is no error:
    only phases of one stream run in order. example: such a pair, the earlier launch first.

    broken: number of phases that ran after a later launch of the same stream. Always 0, unless the trace is wrong.
    """

    overtaken: int
    example: tuple[str, str] | None
    broken: int


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
        order=_launch_order(trace),
    )


def _phases(trace: Trace) -> Iterable[PhaseReport]:
    for stage in trace.stages:
        for lane in trace.lanes(stage):
            spans = trace.on(stage, lane)
            for category in dict.fromkeys(span.category for span in spans):
                inside = [span for span in spans if span.category is category]
                names = list(dict.fromkeys(span.phase for span in inside))
                for name in names:
                    yield _phase(name, [span for span in inside if span.phase == name])
                if len(names) > 1:
                    yield _phase(None, inside)


def _phase(phase: str | None, spans: list[PhaseSpan]) -> PhaseReport:
    launch = Spread.of([span.launched.length for span in spans])
    run = Spread.of([span.ran.length for span in spans])
    one = spans[0]
    return PhaseReport(stage=one.stage, lane=one.lane, category=one.category.value, phase=phase, launch=launch, run=run)


def _lanes(trace: Trace) -> Iterable[LaneReport]:
    for stage in trace.stages:
        lanes = trace.lanes(stage)
        beside = Busy(
            span.ran for span in trace.phases if span.lane == MAIN and (MAIN not in lanes or span.stage == stage)
        )
        for lane in lanes:
            if lane == MAIN:
                continue
            busy = Busy(span.ran for span in trace.on(stage, lane))
            hidden = busy.shared(beside) / busy.total if busy.total else 1.0
            yield LaneReport(stage=stage, lane=lane, busy=busy.total / 1000, hidden=hidden)


def _host(trace: Trace) -> Iterable[HostReport]:
    taken: dict[tuple[str, str], list[int]] = {}
    for span in trace.host:
        taken.setdefault((span.stage, span.name), []).append(span.took.length)
    for (stage, name), lengths in taken.items():
        yield HostReport(stage=stage, name=name, took=Spread.of(lengths))


def _launch_order(trace: Trace) -> LaunchOrder:
    overtaken, broken = 0, 0
    example: tuple[str, str] | None = None
    over_first: PhaseSpan | None = None
    next_on: dict[tuple[str, str], PhaseSpan] = {}
    # From the last launch to the first. Of the later launches, track the first to end, and the next to begin
    # per stream.
    for span in sorted(trace.phases, key=lambda one: one.launched.start, reverse=True):
        stream = (span.stage, span.lane)
        if stream in next_on and next_on[stream].ran.start < span.ran.start:
            broken += 1
        elif over_first is not None and over_first.ran.end <= span.ran.start and over_first.ran.length > 0:
            overtaken += 1
            example = (_named(span), _named(over_first))
        next_on[stream] = span
        if over_first is None or span.ran.end < over_first.ran.end:
            over_first = span
    return LaunchOrder(overtaken=overtaken, example=example, broken=broken)


def _named(span: PhaseSpan) -> str:
    step = f" of step {span.step}" if span.step is not None else ""
    return f"{span.stage}: {span.phase}{step}"
