"""Selects a part of each trace, and draws it into a file."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omni.errors import InputError
from omni.timeline.picture import palette
from omni.timeline.picture.block import Block
from omni.timeline.picture.layout import LEFT, RIGHT, Scale, duration, header, ruler
from omni.timeline.picture.scene import Scene, Text
from omni.timeline.picture.write import write_html, write_png
from omni.timeline.report import make_report
from omni.timeline.trace import Interval, Step, Trace, steps_of
from omni.utils.files import replacing

_WHOLE = 20_000_000
"""Nanoseconds drawn of a trace without steps."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """shown: the drawn interval. steps: the steps of `stage` that determined it; none for a trace without steps."""

    shown: Interval
    stage: str = ""
    steps: tuple[Step, ...] = ()


def excerpt_of(trace: Trace, *, stage: str | None = None, steps: int = 3, first: int | None = None) -> Excerpt:
    """A window of consecutive steps of a stage: from step number `first`, else decode steps of median duration. stage: None selects
    the one with the most steps. Raises InputError for a stage or a step that is not in the trace."""
    by_stage = {name: steps_of(trace, name) for name in trace.stages}
    if stage is not None and not by_stage.get(stage):
        known = [name for name, found in by_stage.items() if found]
        raise InputError("--stage", f"{stage!r} has no steps in the trace", f"use {' or '.join(known) or 'none'}")
    chosen = stage or max(by_stage, key=lambda name: len(by_stage[name]), default="")
    found = by_stage.get(chosen, ())
    if not found:
        start = min((span.launched.start for span in trace.phases), default=0)
        end = max((span.ran.end for span in trace.phases), default=1)
        return Excerpt(Interval(start, min(end, start + _WHOLE)))
    shown = _from(found, first, steps) if first is not None else _typical(found, steps)
    start, end = shown[0].ran.start, max(step.ran.end for step in shown)
    margin = max(1, (end - start) * 3 // 100)
    return Excerpt(Interval(start - margin, end + margin), chosen, tuple(shown))


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


_WIDTH = 1400
_WRITERS = {".png": write_png, ".html": write_html}


def draw(panels: Sequence[tuple[str, Trace, Excerpt]], path: str | os.PathLike[str]) -> None:
    """Draws a part of each trace, with its title, one below the other on one scale, into a .png or a .html file. Raises InputError
    for another type of file, or a file that cannot be written; an existing file then stays unchanged."""
    target = Path(path)
    write = _WRITERS.get(target.suffix)
    if write is None:
        raise InputError(str(path), "has an unsupported extension", f"name a file that ends in {' or '.join(_WRITERS)}")
    try:
        with replacing(target) as file:
            write(scene_of(panels), file)
    except OSError as error:
        raise InputError(str(path), f"cannot be written ({error.strerror})", "give another file name") from error


def scene_of(panels: Sequence[tuple[str, Trace, Excerpt]]) -> Scene:
    scene = Scene(_WIDTH)
    longest = max(window.shown.length for _, _, window in panels)
    categories = {
        span.category for _, trace, window in panels for span in trace.phases if span.ran.overlaps(window.shown)
    }
    header(scene, categories)
    for title, trace, window in panels:
        scale = Scale(window.shown, longest / (_WIDTH - LEFT - RIGHT))
        _panel(scene, title, trace, window, scale)
        ruler(scene, scale)
    scene.height += 10
    return scene


def _panel(scene: Scene, title: str, trace: Trace, window: Excerpt, scale: Scale) -> None:
    """Draws a trace below the scene's present content, without stages that are idle in the window."""
    y = scene.height + 16
    scene.add(Text(12, y, title, size=16, bold=True))
    scene.add(Text(12, y + 20, _summary(trace, window), palette.FAINT))
    scene.height = y + 38
    for stage in trace.stages:
        block = Block(scene, trace, stage, scale)
        if block.busy:
            block.draw()


def _summary(trace: Trace, window: Excerpt) -> str:
    """A summary, from the whole trace, of the stage with the shown steps."""
    decoding = next((one for one in make_report(trace).decoding if one.stage == window.stage), None)
    if decoding is None or not window.steps:
        return f"{duration(window.shown.length)} on {trace.device}"
    numbers = [step.number for step in window.steps]
    shown = f"steps {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"step {numbers[0]}"
    parts = [f"{window.stage}, {shown}, on {trace.device}; of {decoding.steps} decode steps:"]
    if decoding.period is not None:
        parts.append(f"period p50 {duration(decoding.period.p50 * 1000)}")
    if decoding.idle is not None:
        idle = decoding.idle
        parts.append(f"idle between steps p50 {duration(idle.p50 * 1000)}, p99 {duration(idle.p99 * 1000)}")
    return "   ".join(parts)
