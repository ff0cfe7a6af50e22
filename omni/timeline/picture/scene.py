"""Shapes, independent of the file format. Positions are pixels from the top left corner."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from PIL import ImageFont

SIZE = 13
"""The default text size, in pixels."""

Anchor = Literal["left", "middle", "right"]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of the picture. tip: text that a viewer shows for it. hatched: striped in `edge`'s colour."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    edge: str = ""
    hatched: bool = False
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text. y: of its middle. x: of its `anchor`."""

    x: float
    y: float
    text: str
    color: str = "#222222"
    size: int = SIZE
    anchor: Anchor = "left"
    bold: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    x1: float
    y1: float
    x2: float
    y2: float
    color: str
    width: float = 1.0


@dataclass(frozen=True, slots=True)
class Polygon:
    """A filled polygon of the picture."""

    points: tuple[tuple[float, float], ...]
    fill: str
    tip: str = ""


Item = Box | Text | Line | Polygon


@dataclass(slots=True)
class Scene:
    """Shapes in drawing order: later ones are on top."""

    width: int
    height: float = 0.0
    items: list[Item] = field(default_factory=list)

    def add(self, *items: Item) -> None:
        self.items.extend(items)


def text_width(text: str, size: int = SIZE) -> float:
    """The estimated width of a line of text, in pixels; a viewer's font may differ a little."""
    return font_of(size).getlength(text)


def triangle(x: float, tip_y: float, size: float) -> tuple[tuple[float, float], ...]:
    """The corners of a triangle that points down at (x, tip_y)."""
    return ((x - size, tip_y - 1.6 * size), (x + size, tip_y - 1.6 * size), (x, tip_y))


def stripes(box: Box) -> Iterator[tuple[float, float, float, float]]:
    """The ends of slanted lines across a box."""
    for offset in range(6, math.ceil(box.width + box.height), 6):
        x1, x2 = max(0.0, offset - box.height), min(offset, box.width)
        yield box.x + x1, box.y + offset - x1, box.x + x2, box.y + offset - x2


@lru_cache
def font_of(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont), "pillow was built without FreeType"
    return font
