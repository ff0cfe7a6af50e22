"""A scene as a PNG, at twice its size for sharpness."""

from typing import BinaryIO

from PIL import Image, ImageDraw, ImageFont

from omni.timeline.picture.palette import PAPER
from omni.timeline.picture.scene import Box, Line, Scene, Shape, Text, stripes

_SCALE = 2
_ANCHORS = {"left": "lm", "middle": "mm", "right": "rm"}


def write_png(scene: Scene, file: BinaryIO) -> None:
    """Writes the picture. Raises OSError."""
    image = Image.new("RGB", (scene.width * _SCALE, round(scene.height) * _SCALE), PAPER)
    pen = _Pen(ImageDraw.Draw(image))
    for item in scene.items:
        match item:
            case Box():
                pen.box(item)
            case Text():
                pen.text(item)
            case Line():
                pen.line(item)
            case Shape():
                pen.draw.polygon([(x * _SCALE, y * _SCALE) for x, y in item.points], fill=item.fill)
    image.save(file, "PNG", optimize=True)


class _Pen:
    def __init__(self, draw: ImageDraw.ImageDraw) -> None:
        self.draw = draw
        self._fonts: dict[int, ImageFont.FreeTypeFont | ImageFont.ImageFont] = {}

    def box(self, box: Box) -> None:
        left, top = round(box.x * _SCALE), round(box.y * _SCALE)
        right = max(left, round((box.x + box.width) * _SCALE) - 1)
        bottom = max(top, round((box.y + box.height) * _SCALE) - 1)
        edge = box.edge if box.edge and right - left > 2 else None
        self.draw.rectangle((left, top, right, bottom), box.fill, edge)
        if box.hatched:
            for ends in stripes(box, 6):
                self.draw.line([value * _SCALE for value in ends], box.edge, 1)

    def text(self, text: Text) -> None:
        where = (text.x * _SCALE, text.y * _SCALE)
        thick = 0.6 if text.bold else 0
        font, anchor = self._font(text.size), _ANCHORS[text.anchor]
        self.draw.text(where, text.text, text.color, font, anchor, stroke_width=thick, stroke_fill=text.color)

    def line(self, line: Line) -> None:
        width = max(1, round(line.width * _SCALE))
        ends = (line.x1, line.y1, line.x2, line.y2)
        self.draw.line([value * _SCALE for value in ends], line.color, width)

    def _font(self, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
        if size not in self._fonts:
            self._fonts[size] = ImageFont.load_default(size * _SCALE)
        return self._fonts[size]
