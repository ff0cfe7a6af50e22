"""Draws traces into a file."""

import os
from collections.abc import Sequence
from pathlib import Path

from omni.errors import InputError
from omni.timeline.picture import palette
from omni.timeline.picture.block import Block
from omni.timeline.picture.html import write_html
from omni.timeline.picture.layout import Scale, duration, header, ruler
from omni.timeline.picture.png import write_png
from omni.timeline.picture.scene import Scene, Text
from omni.timeline.picture.window import Window
from omni.timeline.report import make_report
from omni.timeline.trace import Trace
from omni.utils.files import replacing

_WIDTH = 1400
_WRITERS = {".png": write_png, ".html": write_html}


def draw(panels: Sequence[tuple[str, Trace, Window]], path: str | os.PathLike[str]) -> None:
    """Draws a part of each trace, with its title, one below the other on one scale, into a .png or a .html file.

    Raises InputError for another type of file, or a file that cannot be written; an existing file then stays unchanged.
    """
    target = Path(path)
    write = _WRITERS.get(target.suffix)
    if write is None:
        raise InputError(str(path), "is no kind of picture", f"name a file that ends in {' or '.join(_WRITERS)}")
    try:
        with replacing(target) as file:
            write(scene_of(panels), file)
    except OSError as error:
        raise InputError(str(path), f"cannot be written ({error.strerror})", "give another file name") from error


def scene_of(panels: Sequence[tuple[str, Trace, Window]]) -> Scene:
    """The drawing, as wide as the longest window."""
    scene = Scene(_WIDTH)
    longest = max(window.shown.length for _, _, window in panels)
    categories = {
        span.category for _, trace, window in panels for span in trace.phases if span.ran.overlaps(window.shown)
    }
    header(scene, categories)
    for title, trace, window in panels:
        scale = Scale.of(window.shown, longest, _WIDTH)
        _panel(scene, title, trace, window, scale)
        ruler(scene, scale)
    scene.height += 10
    return scene


def _panel(scene: Scene, title: str, trace: Trace, window: Window, scale: Scale) -> None:
    """Draws a trace below the scene's present content, without stages that are idle in the window."""
    y = scene.height + 16
    scene.add(Text(12, y, title, size=16, bold=True))
    scene.add(Text(12, y + 20, _summary(trace, window), palette.FAINT))
    scene.height = y + 38
    for stage in trace.stages:
        block = Block(scene, trace, stage, scale)
        if block.busy:
            block.draw()


def _summary(trace: Trace, window: Window) -> str:
    """A summary, from the whole trace, of the stage with the shown steps."""
    decoding = next((one for one in make_report(trace).decoding if one.stage == window.stage), None)
    if decoding is None or not window.steps:
        return f"{duration(window.shown.length)} on {trace.device}"
    numbers = [step.number for step in window.steps]
    said = f"steps {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"step {numbers[0]}"
    parts = [f"{window.stage}, {said}, on {trace.device}; of {decoding.steps} decode steps:"]
    if decoding.period is not None:
        parts.append(f"period p50 {duration(decoding.period.p50 * 1000)}")
    if decoding.idle is not None:
        idle = decoding.idle
        parts.append(f"idle between steps p50 {duration(idle.p50 * 1000)}, p99 {duration(idle.p99 * 1000)}")
    return "   ".join(parts)
