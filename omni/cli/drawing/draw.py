"""A pipeline as boxes and arrows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omni.cli.drawing.canvas import Canvas
from omni.cli.drawing.layout import Node, lay_out
from omni.pipeline import Pipeline

_WIDTH = 80
_FRAME = 2


def draw(pipeline: Pipeline, places: Mapping[str, Sequence[str]] | None = None, *, ascii_only: bool = False) -> str:
    """Stages as boxes with name, kind and places, if given, outputs as words below them, arrows from producers to consumers.

    80 columns wide, unless long names or many arrows need more. ascii_only: for terminals without line characters.
    """
    stages = [
        Node(stage.name, (stage.name, stage.kind, *(places or {}).get(stage.name, ())), framed=True)
        for stage in pipeline.order()
    ]
    outputs = [Node(f"output {output.modality}", (output.modality,)) for output in pipeline.outputs]
    arrows = [(edge.producer, edge.consumer) for edge in pipeline.edges]
    arrows += [(output.stage, f"output {output.modality}") for output in pipeline.outputs]
    canvas, row = Canvas(), 0
    ranks = lay_out([*stages, *outputs], arrows, _WIDTH)
    for number, rank in enumerate(ranks):
        height = max(_height(node) for node in rank)
        for node in rank:
            _draw_node(canvas, node, row, height)
        below = ranks[number + 1] if number + 1 < len(ranks) else []
        row += height + _draw_arrows(canvas, rank, below, row + height)
    return canvas.render(ascii_only=ascii_only)


def _height(node: Node) -> int:
    return len(node.lines) + (_FRAME if node.framed else 0)


def _draw_node(canvas: Canvas, node: Node, row: int, height: int) -> None:
    if node.framed:
        canvas.box(row, node.left, tuple(line.ljust(node.width - 4) for line in node.lines))
        for index in range(len(node.targets)):
            canvas.leave(row + _height(node) - 1, node.port(index))
    elif node.lines:
        canvas.text(row, node.left, node.lines[0])
    else:
        canvas.down(node.left, row, row + height - 1, node.name, from_above=True)


@dataclass(slots=True)
class _Bundle:
    """All arrows into one node: they join in one horizontal line, `row` rows below their sources."""

    target: Node
    columns: list[int]
    row: int = 0

    @property
    def first(self) -> int:
        return min(*self.columns, self.target.middle)

    @property
    def last(self) -> int:
        return max(*self.columns, self.target.middle)

    def touches(self, other: "_Bundle") -> bool:
        return self.first <= other.last + 1 and other.first <= self.last + 1


def _draw_arrows(canvas: Canvas, above: Sequence[Node], below: Sequence[Node], top: int) -> int:
    """Returns the number of rows drawn, the last one with arrowheads."""
    if not below:
        return 0
    bundles = []
    for target in below:
        columns = [node.port(i) for node in above for i, other in enumerate(node.targets) if other is target]
        if columns:
            bundles.append(_Bundle(target, columns))
    turns = [bundle for bundle in bundles if bundle.first < bundle.last]
    turning = _assign_rows(turns)
    for bundle in turns:
        canvas.across(top + bundle.row, bundle.first, bundle.last, bundle.target.name)
    for bundle in bundles:
        name, turn = bundle.target.name, top + bundle.row
        for column in bundle.columns:
            canvas.down(column, top, turn, name, from_above=True)
        canvas.down(bundle.target.middle, turn, top + turning, name)
        if bundle.target.lines:
            canvas.text(top + turning, bundle.target.middle, "▼")
    return turning + 1


def _assign_rows(bundles: Sequence[_Bundle]) -> int:
    """Overlapping lines get different rows. Returns the number of rows."""
    rows: list[list[_Bundle]] = []
    # Arrows that go further to a side turn higher up, so that arrows from one box do not cross.
    for bundle in sorted(bundles, key=lambda one: -one.last if one.first < one.target.middle else one.first):
        bundle.row = next((n for n, row in enumerate(rows) if not any(map(bundle.touches, row))), len(rows))
        if bundle.row == len(rows):
            rows.append([])
        rows[bundle.row].append(bundle)
    return len(rows)
