"""A scene as a PNG, at twice its size for sharpness."""

from typing import BinaryIO

from PIL import Image, ImageDraw

from omni.timeline.picture.palette import PAPER
from omni.timeline.picture.scene import Box, Line, Scene, Shape, Text, font_of, stripes

_SCALE = 2
_ANCHORS = {"left": "lm", "middle": "mm", "right": "rm"}


def write_png(scene: Scene, file: BinaryIO) -> None:
    """Writes the picture. Raises OSError."""
    image = Image.new("RGB", (scene.width * _SCALE, round(scene.height) * _SCALE), PAPER)
    pen = ImageDraw.Draw(image)
    for item in scene.items:
        match item:
            case Box():
                _box(pen, item)
            case Text():
                at, font = (item.x * _SCALE, item.y * _SCALE), font_of(item.size * _SCALE)
                thick = 0.6 if item.bold else 0
                anchor = _ANCHORS[item.anchor]
                pen.text(at, item.text, item.color, font, anchor, stroke_width=thick, stroke_fill=item.color)
            case Line():
                ends = (item.x1, item.y1, item.x2, item.y2)
                pen.line([value * _SCALE for value in ends], item.color, max(1, round(item.width * _SCALE)))
            case Shape():
                pen.polygon([(x * _SCALE, y * _SCALE) for x, y in item.points], fill=item.fill)
    image.save(file, "PNG", optimize=True)


def _box(pen: ImageDraw.ImageDraw, box: Box) -> None:
    left, top = round(box.x * _SCALE), round(box.y * _SCALE)
    right = max(left, round((box.x + box.width) * _SCALE) - 1)
    bottom = max(top, round((box.y + box.height) * _SCALE) - 1)
    pen.rectangle((left, top, right, bottom), box.fill, box.edge if box.edge and right - left > 2 else None)
    if box.hatched:
        for ends in stripes(box, 6):
            pen.line([value * _SCALE for value in ends], box.edge, 1)
