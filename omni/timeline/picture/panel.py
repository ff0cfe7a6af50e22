"""One trace of a picture: its title, and a block of lanes for each stage."""

from omni.timeline.picture import palette
from omni.timeline.picture.block import Block
from omni.timeline.picture.layout import Scale, duration
from omni.timeline.picture.scene import Scene, Text
from omni.timeline.picture.window import Window
from omni.timeline.report import make_report
from omni.timeline.trace import Trace


def panel(scene: Scene, title: str, trace: Trace, window: Window, scale: Scale) -> None:
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
