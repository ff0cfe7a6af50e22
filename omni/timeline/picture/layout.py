"""The common parts of a picture's panels: scale, legend, ruler."""

import math
from dataclasses import dataclass

from omni.device import PhaseCategory
from omni.timeline.picture import palette
from omni.timeline.picture.scene import Box, Line, Polygon, Scene, Text, text_width, triangle
from omni.timeline.trace import Interval

LEFT = 128
"""Pixels beside the lanes, for names."""
RIGHT = 16
_TOKEN_POINT = PhaseCategory.TOKEN_POINT.value


@dataclass(frozen=True, slots=True)
class Scale:
    """Converts nanoseconds to pixels. shown: the interval on the lanes."""

    shown: Interval
    per_pixel: float

    @property
    def right(self) -> float:
        return self.x(self.shown.end)

    def x(self, time: int) -> float:
        shown = min(max(time, self.shown.start), self.shown.end)
        return LEFT + (shown - self.shown.start) / self.per_pixel

    def width(self, interval: Interval) -> float:
        return self.x(interval.end) - self.x(interval.start)


def duration(nanoseconds: float) -> str:
    """A duration with at most three digits, and its unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size:
            value = nanoseconds / size
            return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"
    return f"{nanoseconds / 1e3:.2f} us"


def header(scene: Scene, categories: set[PhaseCategory]) -> None:
    fills = {category.value: fill for category, fill in palette.CATEGORIES.items() if category in categories}
    gap = "the stage's stream has nothing to run"
    fills |= {_TOKEN_POINT: palette.POINT, gap: palette.GAP, "host work": palette.HOST}
    x, y = 12.0, 20.0
    for name, fill in fills.items():
        width = 32 + text_width(name) + 16
        if x + width > scene.width:
            x, y = 12.0, y + 22
        if name == _TOKEN_POINT:
            scene.add(Polygon(triangle(x + 13, y + 6, 6), fill))
        else:
            scene.add(Box(x, y - 7, 26, 14, fill, palette.GAP_EDGE if name == gap else "", hatched=name == gap))
        scene.add(Text(x + 32, y, name))
        x += width
    scene.height = y + 18


def ruler(scene: Scene, scale: Scale) -> None:
    y, shown = scene.height, scale.shown
    scene.add(Line(LEFT, y, scale.right, y, palette.FAINT))
    # The smallest of 1, 2, 5, 10, ... nanoseconds that takes at least 110 pixels.
    least = scale.per_pixel * 110
    power = 10.0 ** math.floor(math.log10(least))
    tick = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least)
    for number in range(int(shown.length / tick) + 1):
        x = scale.x(shown.start + round(number * tick))
        scene.add(Line(x, y, x, y + 5, palette.FAINT))
        scene.add(Text(x, y + 14, duration(number * tick) if number else "0", palette.FAINT, 11, "middle"))
    scene.height = y + 30
