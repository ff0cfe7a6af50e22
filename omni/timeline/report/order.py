"""Compares the order in which phases ran with the order of their launches."""

import msgspec

from omni.timeline.trace import PhaseSpan, Trace


class LaunchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """overtaken: number of phases that began after a later launch had finished on another stream. This is no error:
    only phases of one stream run in order. example: such a pair, the earlier launch first.

    broken: number of phases that ran after a later launch of the same stream. Always 0, unless the trace is wrong.
    """

    overtaken: int
    example: tuple[str, str] | None
    broken: int


def launch_order(trace: Trace) -> LaunchOrder:
    """Compares every pair of phases."""
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
