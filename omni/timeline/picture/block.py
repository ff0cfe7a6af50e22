"""A stage's lanes: its host work above, its streams below."""

from omni.device import PhaseCategory
from omni.timeline.picture import palette
from omni.timeline.picture.layout import LEFT, Scale, duration
from omni.timeline.picture.scene import Box, Line, Polygon, Scene, Text, text_width, triangle
from omni.timeline.trace import MAIN, Busy, Interval, PhaseSpan, Trace, steps_of

_HOST, _LAUNCHES, _NOTES, _MAIN, _BESIDE = 15, 20, 30, 40, 20
"""The heights of a block's lines, in pixels."""
_SMALL = 11
_LEAST_GAP, _LEAST_WAIT = 0.8, 3.0
"""Minimum pixels of drawn gaps: between steps, and inside a step, where cuts between phases would fill the picture."""


class Block:
    """Draws one stage in a window of a trace."""

    def __init__(self, scene: Scene, trace: Trace, stage: str, scale: Scale) -> None:
        self._scene = scene
        self._stage = stage
        self._shown = shown = scale.shown
        self._scale = scale
        own = [span for span in trace.phases if span.stage == stage and span.category is not PhaseCategory.TOKEN_POINT]
        self._launched = [span for span in own if span.launched.overlaps(shown)]
        self._ran = [span for span in own if span.ran.overlaps(shown)]
        self._host = [span for span in trace.host if span.stage == stage and span.took.overlaps(shown)]
        self._steps = [step for step in steps_of(trace, stage) if step.ran.overlaps(shown)]
        self._lanes = [lane for lane in trace.lanes(stage) if any(span.lane == lane for span in self._ran)]
        self._noted: list[tuple[float, float]] = []
        """The space of each note, from left to right."""

    @property
    def busy(self) -> bool:
        return bool(self._ran or self._host)

    def draw(self) -> None:
        top = self._scene.height + 10
        if not self._ran and not self._launched:
            self._draw_host(top)
            self._scene.height = top + _HOST + 6
            return
        launches = top + _HOST + 2
        main = launches + _LAUNCHES + (_NOTES if self._steps else 4)
        beside = {lane: main + _MAIN + 4 + number * (_BESIDE + 3) for number, lane in enumerate(self._lanes[1:])}
        offsets = {**beside, **({self._lanes[0]: main} if self._lanes else {})}
        bottom = main + _MAIN + 4 + len(beside) * (_BESIDE + 3)
        gaps = self._gaps()
        for gap in gaps:
            self._scene.add(Box(self._scale.x(gap.start), top, self._scale.width(gap), bottom - top, palette.BAND))
        self._draw_host(top)
        self._name_lane("host launches", launches, _LAUNCHES)
        for phase in self._launched:
            tip = f"launch of {self._tip_of(phase)}"
            self._box(phase.launched, launches, _LAUNCHES, palette.CATEGORIES[phase.category], phase.phase, tip)
        for lane, y in offsets.items():
            height = _MAIN if y == main else _BESIDE
            self._name_lane("device" if lane == MAIN else f"device: {lane}", y, height)
            for span in (span for span in self._ran if span.lane == lane):
                self._box(span.ran, y, height, palette.CATEGORIES[span.category], span.phase, self._tip_of(span))
        for step in self._steps:
            self._draw_arrow(step.phases[0], launches + _LAUNCHES, main)
        for gap in gaps:
            self._draw_gap(gap, main)
        self._draw_steps(main)
        self._scene.height = bottom + 6

    def _gaps(self) -> list[Interval]:
        """Idle intervals of a stage with steps, between its first and its last phase in the window."""
        if not self._steps:
            return []
        runs = [span.ran for span in self._ran if span.lane == MAIN]
        first, last = min(run.start for run in runs), max(run.end for run in runs)
        inside = Interval(max(first, self._shown.start), min(last, self._shown.end))
        return [
            gap
            for gap in Busy(runs).gaps(inside)
            if self._scale.width(gap) >= (_LEAST_GAP if self._between(gap) else _LEAST_WAIT)
        ]

    def _between(self, gap: Interval) -> bool:
        """Whether a step begins at the end of the gap."""
        return any(step.ran.start == gap.end for step in self._steps)

    def _draw_host(self, top: float) -> None:
        self._scene.add(Text(12, top + _HOST / 2, self._stage, bold=True))
        for span in self._host:
            label = f"{span.name} {span.numbers['step']}" if "step" in span.numbers else span.name
            numbers = ", ".join(f"{name} {number}" for name, number in span.numbers.items())
            tip = f"{span.name}{f' ({numbers})' if numbers else ''}: {duration(span.took.length)} of the host"
            self._box(span.took, top, _HOST, palette.HOST, label, tip)

    def _draw_gap(self, gap: Interval, y: float) -> None:
        x, width, label = self._scale.x(gap.start), self._scale.width(gap), duration(gap.length)
        tip = f"nothing runs for {label}"
        self._scene.add(Box(x, y, width, _MAIN, palette.GAP, palette.GAP_EDGE, hatched=True, tip=tip))
        between = self._between(gap)
        if not between and width < text_width(label, _SMALL):
            return
        label = f"idle {label}" if between else label
        self._note(x + width / 2, y, label, palette.GAP_INK, bold=between)

    def _draw_steps(self, main: float) -> None:
        for step in self._steps:
            point = step.token_point
            if point is not None and self._shown.start <= point <= self._shown.end:
                at = triangle(self._scale.x(point), main + 3, 5.5)
                self._scene.add(Polygon(at, palette.POINT, f"token point of step {step.number}"))
            x, width = self._scale.x(step.ran.start), self._scale.width(step.ran)
            self._scene.add(Line(x, main - 6, x, main + _MAIN + 2, palette.INK))
            for text in (f"step {step.number}: {duration(step.ran.length)}", f"step {step.number}", f"{step.number}"):
                inside = text_width(text, _SMALL) < width
                if inside and self._note(x + width / 2, main, text, palette.INK):
                    break

    def _note(self, x: float, main: float, text: str, color: str, *, bold: bool = False) -> bool:
        """Draws text above the main lane, over the arrows, if it fits. Returns whether it does."""
        width, y = text_width(text, _SMALL), main - 19
        first, last = x - width / 2 - 4, x + width / 2 + 4
        inside = first >= LEFT - 60 and last <= self._scale.right + 10
        if not inside or any(first < end and start < last for start, end in self._noted):
            return False
        self._noted.append((first, last))
        self._scene.add(Box(x - width / 2 - 3, y - 7, width + 6, 14, palette.PAPER))
        self._scene.add(Text(x, y, text, color, _SMALL, "middle", bold=bold))
        return True

    def _draw_arrow(self, span: PhaseSpan, launched_at: float, main: float) -> None:
        """Draws an arrow from a step's first launch to its run, if both are in the window."""
        shown = self._shown
        if shown.start <= span.launched.start and span.ran.start <= shown.end:
            x, y = self._scale.x(span.ran.start), main - 4
            self._scene.add(Line(self._scale.x(span.launched.start), launched_at, x, y, palette.FAINT, 1.2))
            self._scene.add(Polygon(triangle(x, y + 4, 3.5), palette.FAINT))

    def _name_lane(self, name: str, y: float, height: float) -> None:
        self._scene.add(Box(LEFT, y, self._scale.right - LEFT, height, palette.LANE))
        self._scene.add(Text(12, y + height / 2, name, palette.FAINT, 12))

    def _box(self, span: Interval, y: float, height: float, fill: str, label: str, tip: str) -> None:
        x, width = self._scale.x(span.start), max(self._scale.width(span), 0.7)
        self._scene.add(Box(x, y, width, height, fill, palette.PAPER if width > 3 else "", tip=tip))
        if text_width(label, _SMALL) + 6 <= width:
            color = palette.ink_on(fill)
            self._scene.add(Text(x + width / 2, y + height / 2, label, color, _SMALL, "middle"))

    def _tip_of(self, span: PhaseSpan) -> str:
        step = f", step {span.step}" if span.step is not None else ""
        late = duration(max(0, span.ran.start - span.launched.start))
        runs = f"runs {duration(span.ran.length)}, {late} after its launch"
        return f"{span.phase} ({span.category.value}{step}): {runs}; the launch takes {duration(span.launched.length)}"
