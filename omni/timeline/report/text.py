"""The report as text, for a terminal."""

from collections.abc import Iterable, Iterator, Sequence

from omni.timeline.report.report import LaneReport, LaunchOrder, PhaseReport, Report
from omni.timeline.report.stages import Decoding, Spread
from omni.utils.table import columns

_PERCENTILES = ("p50", "p90", "p99")


def report_lines(report: Report) -> Iterator[str]:
    """The report's lines, with times in microseconds."""
    count = sum(phase.run.count for phase in report.phases if phase.phase is not None)
    yield f"{count} phases in {report.span / 1000:.1f} ms on {report.device}; times in microseconds"
    if report.error:
        yield f"launches and runs may be shifted against each other by {report.error:.1f}"
    if report.dropped:
        yield f"{report.dropped} older spans were dropped: there was no room for them"
    if report.unfinished:
        yield f"{report.unfinished} phases had not run when the recording ended, and are not counted"
    for decoding in report.decoding:
        yield from _decoding(decoding)
    yield from _phases(report.phases)
    yield from _host(report)
    yield from _lanes(report.lanes)
    yield from _order(report.order)


def _decoding(decoding: Decoding) -> Iterator[str]:
    rows = [
        ("period, start to start", decoding.period),
        ("device idle between steps", decoding.idle),
        ("device waits inside a step", decoding.waits),
        ("token point to the next step", decoding.behind_token),
        ("host, first launch to first launch", decoding.launch_period),
        ("host, last launch to next launch", decoding.launch_gap),
        *((f"  {name}", spread) for name, spread in decoding.categories.items()),
    ]
    yield ""
    yield from _table(
        (f"{decoding.stage}: {decoding.steps} decode steps", *_PERCENTILES),
        [(name, *_three(spread)) for name, spread in rows if spread is not None],
    )


def _phases(phases: Sequence[PhaseReport]) -> Iterator[str]:
    rows = []
    for one in phases:
        words = one.stage, one.lane, one.category, one.phase if one.phase is not None else "together"
        rows.append((*words, str(one.run.count), *_three(one.run), f"{one.run.total / 1000:.2f}", *_three(one.launch)))
    yield ""
    ran = (f"run {name}" for name in _PERCENTILES)
    launched = (f"launch {name}" for name in _PERCENTILES)
    yield from _table(("stage", "stream", "category", "phase", "count", *ran, "total ms", *launched), rows, words=4)


def _host(report: Report) -> Iterator[str]:
    if not report.host:
        return
    yield ""
    rows = [(one.stage, one.name, str(one.took.count), *_three(one.took)) for one in report.host]
    yield from _table(("stage", "host time of", "count", *_PERCENTILES), rows, words=2)


def _lanes(lanes: Sequence[LaneReport]) -> Iterator[str]:
    if not lanes:
        return
    yield ""
    rows = [(one.stage, one.lane, f"{one.busy / 1000:.2f}", f"{one.hidden:.0%}") for one in lanes]
    yield from _table(("stage", "stream beside", "busy ms", "behind the main stream"), rows, words=2)


def _order(order: LaunchOrder) -> Iterator[str]:
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


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> Iterator[str]:
    """words: number of text columns, which align left; numbers align right."""
    yield from columns([head, *rows], right=range(words, len(head)), indent="")
