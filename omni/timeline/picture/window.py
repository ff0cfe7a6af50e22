"""The part of a trace that is drawn."""

from collections.abc import Sequence
from dataclasses import dataclass

from omni.errors import InputError
from omni.timeline.steps import Step, steps_of
from omni.timeline.trace import Interval, Trace

_WHOLE = 20_000_000
"""Nanoseconds drawn of a trace without steps."""


@dataclass(frozen=True, slots=True)
class Window:
    """shown: the drawn interval. steps: the steps of `stage` that determined it; none for a trace without steps."""

    shown: Interval
    stage: str = ""
    steps: tuple[Step, ...] = ()


def window_of(trace: Trace, *, stage: str | None = None, steps: int = 3, first: int | None = None) -> Window:
    """A window of consecutive steps of a stage: from step number `first`, else decode steps of median duration.

    stage: None selects the stage with the most steps. Raises InputError for a stage or a step that is not in the trace.
    """
    by_stage = {name: steps_of(trace, name) for name in trace.stages}
    if stage is not None and not by_stage.get(stage):
        known = [name for name, found in by_stage.items() if found]
        raise InputError("--stage", f"{stage!r} has no steps in the trace", f"use {' or '.join(known) or 'none'}")
    chosen = stage or max(by_stage, key=lambda name: len(by_stage[name]), default="")
    found = by_stage.get(chosen, ())
    if not found:
        start = min((span.launched.start for span in trace.phases), default=0)
        end = max((span.ran.end for span in trace.phases), default=1)
        return Window(Interval(start, min(end, start + _WHOLE)))
    shown = _from(found, first, steps) if first is not None else _typical(found, steps)
    start, end = shown[0].ran.start, max(step.ran.end for step in shown)
    margin = max(1, (end - start) * 3 // 100)
    return Window(Interval(start - margin, end + margin), chosen, tuple(shown))


def _from(found: Sequence[Step], first: int, count: int) -> Sequence[Step]:
    numbers = [step.number for step in found]
    if first not in numbers:
        remedy = f"use one of {numbers[0]} to {numbers[-1]}"
        raise InputError("--from", f"step {first} of {found[0].stage!r} is not in the trace", remedy)
    start = numbers.index(first)
    return found[start : start + count]


def _typical(found: Sequence[Step], count: int) -> Sequence[Step]:
    """As many consecutive steps as possible, up to `count`, of median duration; decode steps if possible."""
    for wanted in range(min(count, len(found)), 0, -1):
        groups = [found[start : start + wanted] for start in range(len(found) - wanted + 1)]
        groups = [group for group in groups if group[-1].number - group[0].number == wanted - 1]
        decodes = [group for group in groups if all(step.decodes_only for step in group)]
        if groups and (decodes or wanted == 1):
            taken = sorted(decodes or groups, key=lambda group: group[-1].ran.end - group[0].ran.start)
            return taken[len(taken) // 2]
    return found[:1]
