"""Writes a scene as a page, SVG with tips that is zoomed with the wheel and moved by dragging; or as a PNG."""

from html import escape
from typing import BinaryIO

from PIL import Image, ImageDraw

from omni.timeline.picture.palette import PAPER
from omni.timeline.picture.scene import Box, Item, Line, Polygon, Scene, Text, font_of, stripes

_SVG_ANCHORS = {"left": "start", "middle": "middle", "right": "end"}

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Timeline</title>
<style>
body {{ margin: 0; background: #ffffff; font-family: system-ui, sans-serif; }}
svg {{ display: block; width: 100vw; height: 100vh; cursor: grab; }}
text {{ dominant-baseline: central; pointer-events: none; }}
.tip:hover {{ stroke: #000000; stroke-width: 1; vector-effect: non-scaling-stroke; }}
p {{ position: fixed; right: 12px; bottom: 6px; margin: 0; color: #8a8a8a; font-size: 12px; }}
</style>
</head>
<body>
<svg id="timeline" viewBox="0 0 {width} {height}" preserveAspectRatio="xMidYMin meet">
{items}
</svg>
<p>wheel: zoom &middot; drag: move &middot; double click: all of it &middot; hover over a box: details</p>
<script>
{script}
</script>
</body>
</html>
"""

_SCRIPT = """
const svg = document.getElementById("timeline");
const whole = svg.getAttribute("viewBox").split(" ").map(Number);
let box = whole.slice(), held = null;
const show = () => svg.setAttribute("viewBox", box.join(" "));
const place = (event) => {
  const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  return [point.x, point.y];
};
svg.addEventListener("wheel", (event) => {
  event.preventDefault();
  const factor = event.deltaY > 0 ? 1.2 : 1 / 1.2, [x, y] = place(event);
  if (box[2] * factor > whole[2] * 1.01 || box[2] * factor < whole[2] / 2000) return;
  box = [x - (x - box[0]) * factor, y - (y - box[1]) * factor, box[2] * factor, box[3] * factor];
  show();
}, { passive: false });
svg.addEventListener("pointerdown", (event) => { held = place(event); svg.setPointerCapture(event.pointerId); });
svg.addEventListener("pointerup", () => { held = null; });
svg.addEventListener("pointermove", (event) => {
  if (held === null) return;
  const [x, y] = place(event);
  box = [box[0] + held[0] - x, box[1] + held[1] - y, box[2], box[3]];
  show();
});
svg.addEventListener("dblclick", () => { box = whole.slice(); show(); });
"""


def write_html(scene: Scene, file: BinaryIO) -> None:
    items = "\n".join(_element(item) for item in scene.items)
    page = _PAGE.format(width=scene.width, height=round(scene.height), items=items, script=_SCRIPT.strip())
    file.write(page.encode())


def _element(item: Item) -> str:
    match item:
        case Box():
            return _svg_box(item)
        case Text():
            weight = ' font-weight="bold"' if item.bold else ""
            place = (
                f'x="{item.x:.2f}" y="{item.y:.2f}" font-size="{item.size}" text-anchor="{_SVG_ANCHORS[item.anchor]}"'
            )
            return f'<text {place} fill="{item.color}"{weight}>{escape(item.text)}</text>'
        case Line():
            return _svg_line((item.x1, item.y1, item.x2, item.y2), item.color, item.width)
        case Polygon():
            points = " ".join(f"{x:.2f},{y:.2f}" for x, y in item.points)
            return f'<polygon points="{points}" fill="{item.fill}"{_tip(item.tip, "polygon")}'


def _svg_box(box: Box) -> str:
    edge = f' stroke="{box.edge}" stroke-width="0.5"' if box.edge else ""
    place = f'x="{box.x:.3f}" y="{box.y:.2f}" width="{box.width:.3f}" height="{box.height:.2f}"'
    element = f'<rect {place} fill="{box.fill}"{edge}{_tip(box.tip, "rect")}'
    if box.hatched:
        element += "".join(_svg_line(ends, box.edge, 0.5, ' pointer-events="none"') for ends in stripes(box))
    return element


def _svg_line(ends: tuple[float, float, float, float], color: str, width: float, more: str = "") -> str:
    x1, y1, x2, y2 = ends
    place = f'x1="{x1:.3f}" y1="{y1:.2f}" x2="{x2:.3f}" y2="{y2:.2f}"'
    return f'<line {place} stroke="{color}" stroke-width="{width}"{more}/>'


def _tip(tip: str, tag: str) -> str:
    return f' class="tip"><title>{escape(tip)}</title></{tag}>' if tip else "/>"


_SCALE = 2
_ANCHORS = {"left": "lm", "middle": "mm", "right": "rm"}


def write_png(scene: Scene, file: BinaryIO) -> None:
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
            case Polygon():
                pen.polygon([(x * _SCALE, y * _SCALE) for x, y in item.points], fill=item.fill)
    image.save(file, "PNG", optimize=True)


def _box(pen: ImageDraw.ImageDraw, box: Box) -> None:
    left, top = round(box.x * _SCALE), round(box.y * _SCALE)
    right = max(left, round((box.x + box.width) * _SCALE) - 1)
    bottom = max(top, round((box.y + box.height) * _SCALE) - 1)
    pen.rectangle((left, top, right, bottom), box.fill, box.edge if box.edge and right - left > 2 else None)
    if box.hatched:
        for ends in stripes(box):
            pen.line([value * _SCALE for value in ends], box.edge, 1)
