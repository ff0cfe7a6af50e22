"""Reports of traces, in numbers and as text for a terminal. Times are microseconds."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from omni.device import PhaseCategory
from omni.timeline.ranks import RankOrder, rank_lines, rank_orders
from omni.timeline.slack import ChunkReport, TurnOrder, chunk_reports, slack_lines, turn_orders
from omni.timeline.trace import (
    MAIN,
    RECORDING,
    Busy,
    HostSpan,
    Interval,
    PhaseSpan,
    Step,
    Trace,
    decode_pairs,
    steps_of,
)
from omni.utils.draft_counts import DraftCounts
from omni.utils.table import columns


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
    idle: time in which the stage's stream was idle, from the last phase of one to the first of the next.
    launch_gap: on the host, from the end of one's last launch to the next one's first.
    launch_period: on the host, from first launch to first launch.
    behind_token: on the device, from the token point of one to the start of the next: the delay beside the wait for tokens.

    Inside one: waits: time in which the stage's stream was idle because the host was late. categories: time on it by
    category.
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


class PhaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """phase: None for the sum of the category. launch: on the host. run: on the device."""

    stage: str
    lane: str
    category: str
    phase: str | None
    launch: Spread
    run: Spread


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """unrecorded: without the time in which phases were recorded; None if that was not measured."""

    stage: str
    name: str
    took: Spread
    unrecorded: Spread | None = None


class DraftReport(msgspec.Struct, frozen=True, kw_only=True):
    """Drafts of the steps whose tokens the host has read. The fields are those of `DraftCounts`, and its totals."""

    stage: str
    steps: int
    drafted: int
    accepted: int
    acceptance: tuple[float, ...]
    mean_length: float


class LaneReport(msgspec.Struct, frozen=True, kw_only=True):
    """A stream beside the main ones. busy: the time in which one of its phases ran. hidden: the share of it in which the main
    stream of its stage (of any stage, if its stage has none) ran too, so that the stream itself caused no delay."""

    stage: str
    lane: str
    busy: float
    hidden: float


class LaunchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """overtaken: phases that began after a later launch had finished on another stream. This is not an error: only phases of one
    stream run in order. example: such a pair, the earlier launch first. broken: phases that ran after a later launch of the same
    stream; always 0, unless the trace is wrong."""

    overtaken: int
    example: tuple[str, str] | None
    broken: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """span: from the first launch to the end of the last run. error: bound of the shift between launches and runs.

    phases: by stage and lane, the phases of each category, followed by the category's sum if it has several. turns, chunks: of
    engines and stages that schedule by slack.
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
    drafts: tuple[DraftReport, ...]
    order: LaunchOrder
    ranks: tuple[RankOrder, ...] = ()
    turns: tuple[TurnOrder, ...] = ()
    chunks: tuple[ChunkReport, ...] = ()


def make_report(trace: Trace) -> Report:
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
        drafts=tuple(_drafts(trace)),
        order=_launch_order(trace),
        ranks=tuple(rank_orders(trace)),
        turns=tuple(turn_orders(trace)),
        chunks=tuple(chunk_reports(trace)),
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
    spans: dict[tuple[str, str], list[HostSpan]] = {}
    for span in trace.host:
        spans.setdefault((span.stage, span.name), []).append(span)
    for (stage, name), each in spans.items():
        took = Spread.of([span.took.length for span in each])
        left = [span.took.length - span.numbers[RECORDING] for span in each if RECORDING in span.numbers]
        yield HostReport(stage=stage, name=name, took=took, unrecorded=Spread.of(left) if left else None)


def _drafts(trace: Trace) -> Iterable[DraftReport]:
    for stage in trace.stages:
        counts = DraftCounts()
        for span in trace.host:
            if span.stage == stage:
                counts.merge(DraftCounts.of(span.numbers))
        if counts.mean_length is not None:
            yield DraftReport(
                stage=stage,
                steps=counts.steps,
                drafted=sum(counts.drafted),
                accepted=sum(counts.accepted),
                acceptance=counts.acceptance,
                mean_length=counts.mean_length,
            )


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


_PERCENTILES = ("p50", "p90", "p99")


def report_lines(report: Report) -> Iterator[str]:
    """The report's lines, with times in microseconds."""
    count = sum(phase.run.count for phase in report.phases if phase.phase is not None)
    yield f"{count} phases in {report.span / 1000:.1f} ms on {report.device}; times in microseconds"
    if report.error:
        yield f"launches and runs may be shifted against each other by {report.error:.1f}"
    if report.dropped:
        yield f"{report.dropped} older spans were dropped: the buffer was full"
    if report.unfinished:
        yield f"{report.unfinished} phases had not run when the recording ended, and are not counted"
    for decoding in report.decoding:
        yield from _decoding_lines(decoding)
    if report.drafts:
        yield from _draft_lines(report.drafts)
    yield from _phase_lines(report.phases)
    if report.host:
        took = []
        for one in report.host:
            took.append((one.stage, one.name, str(one.took.count), *_three(one.took)))
            if one.unrecorded is not None:
                took.append(("", "without recording", str(one.unrecorded.count), *_three(one.unrecorded)))
        yield from _table(("stage", "host time of", "count", *_PERCENTILES), took, words=2)
    if report.lanes:
        busy = [(one.stage, one.lane, f"{one.busy / 1000:.2f}", f"{one.hidden:.0%}") for one in report.lanes]
        yield from _table(("stage", "stream beside", "busy ms", "behind the main stream"), busy, words=2)
    yield from _order_lines(report.order)
    yield from rank_lines(report.ranks)
    yield from slack_lines(report.turns, report.chunks)


def _decoding_lines(decoding: Decoding) -> Iterator[str]:
    lines = [
        ("period, start to start", decoding.period),
        ("device idle between steps", decoding.idle),
        ("device waits inside a step", decoding.waits),
        ("token point to the next step", decoding.behind_token),
        ("host, first launch to first launch", decoding.launch_period),
        ("host, last launch to next launch", decoding.launch_gap),
        *((f"  {name}", spread) for name, spread in decoding.categories.items()),
    ]
    yield from _table(
        (f"{decoding.stage}: {decoding.steps} decode steps", *_PERCENTILES),
        [(name, *_three(spread)) for name, spread in lines if spread is not None],
    )


def _draft_lines(drafts: Sequence[DraftReport]) -> Iterator[str]:
    lines = [
        (
            *(one.stage, str(one.drafted), str(one.accepted), f"{one.mean_length:.2f}"),
            " ".join(f"{share:.0%}" for share in one.acceptance),
        )
        for one in drafts
    ]
    yield from _table(("stage", "drafted", "accepted", "tokens per drafted step", "accepted by position"), lines)


def _phase_lines(phases: Sequence[PhaseReport]) -> Iterator[str]:
    lines = []
    for one in phases:
        words = one.stage, one.lane, one.category, one.phase if one.phase is not None else "together"
        lines.append((*words, str(one.run.count), *_three(one.run), f"{one.run.total / 1000:.2f}", *_three(one.launch)))
    ran = (f"run {name}" for name in _PERCENTILES)
    launched = (f"launch {name}" for name in _PERCENTILES)
    yield from _table(("stage", "stream", "category", "phase", "count", *ran, "total ms", *launched), lines, words=4)


def _order_lines(order: LaunchOrder) -> Iterator[str]:
    if order.example is not None:
        first, second = order.example
        yield ""
        yield f"{order.overtaken} phases began after one that was launched later, on another stream, was over:"
        yield f"{second} overtook {first}, for example."
        yield "That is not a bug: streams run side by side, and on each of them the order of launches was kept."
    if order.broken:
        yield ""
        yield f"{order.broken} phases ran before one that was launched earlier on the same stream: the trace is wrong."


def _three(spread: Spread) -> tuple[str, str, str]:
    return f"{spread.p50:.1f}", f"{spread.p90:.1f}", f"{spread.p99:.1f}"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]], words: int = 1) -> list[str]:
    """A table after an empty line. words: number of text columns, which align left; numbers align right."""
    return ["", *columns([head, *lines], right=range(words, len(head)), indent="")]
