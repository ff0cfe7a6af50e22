"""The order in which stages launched by the slack of listeners, and the chunks that were decoded by it. Slack is in seconds.

A turn of an engine's loop that ordered stages is a host span named `ORDER`; its numbers are those that the order followed from. The
stages whose launches lie in the span show which came first.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from omni.device import PhaseCategory
from omni.timeline.trace import MAIN, HostSpan, Trace
from omni.utils.table import columns

ORDER = "order"
"""The name of the host span of a turn."""
CHUNKS = "decode_chunks"
"""The name of the host span of a batch of chunks."""
_CASES = (
    "a listener is short of sound",
    "one waits at the sound stages",
    "slack is not ample",
    "ample slack, a new prompt",
    "nobody waits",
)
_ORDERS = (*(3 * ("sound stages first",)), "others first", "as in the pipeline")


class SlackSpread(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles in seconds, with linear interpolation."""

    p10: float
    p50: float
    p90: float

    @classmethod
    def of(cls, spans: Iterable[HostSpan]) -> "SlackSpread | None":
        """Of the spans in which a listener was playing; None without any."""
        values = [span.numbers["slack_ms"] / 1000 for span in spans if "slack_ms" in span.numbers]
        if not values:
            return None
        p10, p50, p90 = (float(value) for value in np.percentile(values, [10, 50, 90]))
        return cls(p10=p10, p50=p50, p90=p90)


class StageLaunches(msgspec.Struct, frozen=True, kw_only=True):
    """turns: those in which the stage launched a forward. first: those of them in which another stage did so later. last: in which
    one did so before. prefill: the most prompt tokens of one of its steps, None for a stage without prompts."""

    stage: str
    turns: int
    first: int
    last: int
    prefill: int | None


class TurnOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Turns with the same reason for their order. held: those in which the stages that came second did not launch. slack: the least
    of all listeners at the decision."""

    listeners: str
    order: str
    turns: int
    held: int
    slack: SlackSpread | None
    stages: tuple[StageLaunches, ...]


class ChunkReport(msgspec.Struct, frozen=True, kw_only=True):
    """Chunks of one size. first: whether they are the first of their streams. batches: steps. chunks: in all of them. slack: the
    least of a batch at its launch."""

    stage: str
    frames: int
    first: bool
    batches: int
    chunks: int
    slack: SlackSpread | None


def turn_orders(trace: Trace) -> Iterator[TurnOrder]:
    turns: dict[int, list[HostSpan]] = {}
    for span in trace.host:
        if span.name == ORDER:
            turns.setdefault(_case(span.numbers), []).append(span)
    inside = _Inside(trace)
    for case, spans in sorted(turns.items()):
        yield TurnOrder(
            listeners=_CASES[case],
            order=_ORDERS[case],
            turns=len(spans),
            held=sum(span.numbers["held"] for span in spans),
            slack=SlackSpread.of(spans),
            stages=tuple(inside.launches(spans)),
        )


def chunk_reports(trace: Trace) -> Iterator[ChunkReport]:
    batches: dict[tuple[str, bool, int], list[HostSpan]] = {}
    for span in trace.host:
        if span.name == CHUNKS:
            key = (span.stage, not span.numbers["first"], span.numbers["frames"])
            batches.setdefault(key, []).append(span)
    for (stage, later, frames), spans in sorted(batches.items()):
        yield ChunkReport(
            stage=stage,
            frames=frames,
            first=not later,
            batches=len(spans),
            chunks=sum(span.numbers["rows"] for span in spans),
            slack=SlackSpread.of(spans),
        )


def _case(numbers: Mapping[str, int]) -> int:
    """The index of `_CASES`."""
    if numbers["sound_first"]:
        return 0 if numbers["short"] else 1 if numbers["awaited"] else 2
    return 3 if numbers["others_first"] else 4


class _Inside:
    """The launches in turns. A stage that several engines have is left out: its names are not those in the engines' lanes."""

    def __init__(self, trace: Trace) -> None:
        lanes: dict[str, set[str]] = {}
        for span in trace.host:
            lanes.setdefault(span.stage, set()).add(span.name)
        self._stages = [stage for stage in trace.stages if any(stage in names for names in lanes.values())]
        self._own = lanes
        forwards: dict[str, list[int]] = {}
        for phase in trace.phases:
            if phase.lane == MAIN and phase.category is PhaseCategory.FORWARD:
                forwards.setdefault(phase.stage, []).append(phase.launched.start)
        self._forwards = {stage: np.sort(np.asarray(times, np.int64)) for stage, times in forwards.items()}
        prompts: dict[str, list[tuple[int, int]]] = {}
        for span in trace.host:
            if "prefill" in span.numbers:
                prompts.setdefault(span.stage, []).append((span.took.start, span.numbers["prefill"]))
        self._prompts = {stage: np.asarray(sorted(each), np.int64) for stage, each in prompts.items()}

    def launches(self, turns: Sequence[HostSpan]) -> Iterator[StageLaunches]:
        """turns: with the same reason."""
        first, last, launched = dict[str, int](), dict[str, int](), dict[str, int]()
        for turn in turns:
            began = self._began(turn)
            order = sorted(began, key=began.__getitem__)
            for stage in order:
                launched[stage] = launched.get(stage, 0) + 1
                first[stage] = first.get(stage, 0) + (stage == order[0] and len(order) > 1)
                last[stage] = last.get(stage, 0) + (stage != order[0])
        for stage in self._stages:
            if stage in launched:
                yield StageLaunches(
                    stage=stage,
                    turns=launched[stage],
                    first=first[stage],
                    last=last[stage],
                    prefill=self._most_prompt_tokens(stage, turns),
                )

    def _began(self, turn: HostSpan) -> dict[str, int]:
        """The first launch of a forward of each stage."""
        began: dict[str, int] = {}
        for stage, times in self._forwards.items():
            index = int(np.searchsorted(times, turn.took.start))
            if stage in self._own[turn.stage] and index < len(times) and times[index] < turn.took.end:
                began[stage] = int(times[index])
        return began

    def _most_prompt_tokens(self, stage: str, turns: Sequence[HostSpan]) -> int | None:
        if stage not in self._prompts:
            return None
        starts, tokens = self._prompts[stage].T
        most = 0
        for turn in turns:
            begin, end = np.searchsorted(starts, (turn.took.start, turn.took.end))
            most = max(most, int(tokens[begin:end].max(initial=0)))
        return most


def slack_lines(orders: Sequence[TurnOrder], chunks: Sequence[ChunkReport]) -> Iterator[str]:
    """The report's lines about them."""
    slack = ("slack p10 s", "p50", "p90")
    if orders:
        head = ("listeners", "order", "stage", "turns", "held", *slack, "launched", "first", "not first", "prefill")
        lines = []
        for one in orders:
            lines.append((one.listeners, one.order, "", str(one.turns), str(one.held), *_three(one.slack), *4 * ("",)))
            for each in one.stages:
                counts = (str(each.turns), str(each.first), str(each.last))
                prefill = "" if each.prefill is None else str(each.prefill)
                lines.append(("", "", each.stage, *5 * ("",), *counts, prefill))
        yield ""
        yield from columns([head, *lines], right=range(3, len(head)), indent="")
    if chunks:
        sizes = ("stage", "chunks of frames", "batches", "chunks", *slack)
        rows = [
            (
                *(one.stage, f"{one.frames}, first" if one.first else str(one.frames)),
                *(str(one.batches), str(one.chunks), *_three(one.slack)),
            )
            for one in chunks
        ]
        yield ""
        yield from columns([sizes, *rows], right=range(1, len(sizes)), indent="")


def _three(slack: SlackSpread | None) -> tuple[str, str, str]:
    if slack is None:
        return "", "", ""
    return f"{slack.p10:.2f}", f"{slack.p50:.2f}", f"{slack.p90:.2f}"
