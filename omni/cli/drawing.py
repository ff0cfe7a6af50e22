"""A pipeline as boxes and arrows of characters.

The boxes are laid out in ranks from the top down, with every arrow pointing down by one rank.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from itertools import pairwise

from omni.pipeline import Pipeline


class _Arm(IntFlag):
    UP = 1
    DOWN = 2
    LEFT = 4
    RIGHT = 8


_UP, _DOWN, _LEFT, _RIGHT = _Arm.UP, _Arm.DOWN, _Arm.LEFT, _Arm.RIGHT
_SHAPES = " │││─┘┐┤─└┌├─┴┬┼"
"""Box-drawing characters by the directions of their arms."""
_ASCII = str.maketrans({**dict.fromkeys("┌┐└┘├┤┬┴┼", "+"), "│": "|", "─": "-", "▼": "v"})


class Canvas:
    """A grid of characters: `y` counts lines of text downwards, columns count to the right, from 0."""

    def __init__(self) -> None:
        self._texts: dict[tuple[int, int], str] = {}
        self._arms: dict[tuple[int, int], _Arm] = {}
        self._owners: dict[tuple[int, int], str] = {}

    def text(self, y: int, column: int, text: str) -> None:
        for offset, character in enumerate(text):
            self._texts[y, column + offset] = character

    def across(self, y: int, first: int, last: int, owner: str) -> None:
        """A stroke from column `first` to column `last`. Strokes of one owner join where they meet."""
        for column in range(first, last + 1):
            left = _LEFT if column > first else _Arm(0)
            self._add(y, column, left | (_RIGHT if column < last else _Arm(0)), owner)

    def down(self, column: int, first: int, last: int, owner: str, *, from_above: bool = False) -> None:
        """A stroke from `y` = `first` (or the character above it) to `last`, over earlier strokes of other owners."""
        for y in range(first, last + 1):
            up = _UP if y > first or from_above else _Arm(0)
            self._add(y, column, up | (_DOWN if y < last else _Arm(0)), owner)

    def box(self, y: int, column: int, lines: tuple[str, ...]) -> None:
        """A frame around `lines`, with one space beside the longest. y, column: of its upper left corner."""
        width = max(map(len, lines)) + 4
        bottom, right, owner = y + len(lines) + 1, column + width - 1, f"box at {y}, {column}"
        self.across(y, column, right, owner)
        self.across(bottom, column, right, owner)
        self.down(column, y, bottom, owner)
        self.down(right, y, bottom, owner)
        for offset, line in enumerate(lines):
            self.text(y + 1 + offset, column + 2, line)

    def leave(self, y: int, column: int) -> None:
        self._arms[y, column] |= _DOWN

    def render(self, *, ascii_only: bool) -> str:
        cells = {place: _SHAPES[arms] for place, arms in self._arms.items() if arms} | self._texts
        used = [[column for at, column in cells if at == y] for y in range(1 + max(y for y, _ in cells))]
        lines = [
            "".join(cells.get((y, column), " ") for column in range(1 + max(columns, default=-1)))
            for y, columns in enumerate(used)
        ]
        drawn = "\n".join(lines)
        return drawn.translate(_ASCII) if ascii_only else drawn

    def _add(self, y: int, column: int, arms: _Arm, owner: str) -> None:
        place = y, column
        if self._owners.setdefault(place, owner) == owner:
            self._arms[place] = self._arms.get(place, _Arm(0)) | arms
        else:
            self._owners[place], self._arms[place] = owner, arms


_GAP = 3


@dataclass(slots=True)
class Node:
    """lines: its text; empty for a point on a long arrow. framed: whether it is a box. rank, left: its position. targets: of its
    arrows, nodes one rank below, from left to right."""

    name: str
    lines: tuple[str, ...] = ()
    framed: bool = False
    rank: int = 0
    left: int = 0
    targets: list["Node"] = field(default_factory=list)

    @property
    def width(self) -> int:
        text = max(map(len, self.lines), default=1)
        return max(text + 4, 2 * len(self.targets) + 3) if self.framed else text

    @property
    def middle(self) -> int:
        """The column that arrows lead to."""
        return self.left + (self.width - 1) // 2

    def port(self, index: int) -> int:
        """The column that the arrow to `targets[index]` leaves from."""
        return self.left + (index + 1) * (self.width - 1) // (len(self.targets) + 1)


def lay_out(nodes: Sequence[Node], arrows: Sequence[tuple[str, str]], width: int) -> list[list[Node]]:
    """Sets the nodes' positions and returns the ranks, with points added where an arrow skips one. nodes: sources of arrows before
    their targets. width: columns to stay within, if the graph allows it."""
    _rank(nodes, arrows, width)
    ranks: list[list[Node]] = [[] for _ in range(1 + max(node.rank for node in nodes))]
    for node in nodes:
        ranks[node.rank].append(node)
    by_name = {node.name: node for node in nodes}
    for node in nodes:
        _connect([by_name[source] for source, target in arrows if target == node.name], node, ranks)
    _place(ranks, width)
    return ranks


def _rank(nodes: Sequence[Node], arrows: Sequence[tuple[str, str]], width: int) -> None:
    """Below all its sources, in the first rank with space for it and for a passing arrow."""
    by_name = {node.name: node for node in nodes}
    taken: dict[int, int] = defaultdict(lambda: -_GAP)
    for node in nodes:
        node.rank = 1 + max((by_name[source].rank for source, target in arrows if target == node.name), default=-1)
        while taken[node.rank] > 0 and taken[node.rank] + 2 * _GAP + node.width + 1 > width:
            node.rank += 1
        taken[node.rank] += _GAP + node.width


def _connect(sources: Sequence[Node], target: Node, ranks: list[list[Node]]) -> None:
    """Arrows to one node pass each rank through one point."""
    first = min((source.rank for source in sources), default=target.rank) + 1
    points = [Node(f"to {target.name}", rank=rank) for rank in range(first, target.rank)]
    for point in points:
        ranks[point.rank].append(point)
    for source in (*sources, *points):
        source.targets.append(points[source.rank + 1 - first] if source.rank + 1 < target.rank else target)


def _place(ranks: list[list[Node]], width: int) -> None:
    for number, rank in enumerate(ranks):
        wanted = _wanted(ranks[number - 1] if number else [])
        rank.sort(key=lambda node: wanted.get(node.name, 0))
        _spread(rank, wanted)
        if rank[-1].left + rank[-1].width - rank[0].left > width:
            for before, node in pairwise(rank):
                node.left = before.left + before.width + _GAP
    leftmost = min(rank[0].left for rank in ranks)
    for rank in ranks:
        right = rank[-1].left + rank[-1].width - leftmost
        # Never left of the first column, even if the rank is too wide.
        shift = leftmost + max(0, min(right - width, rank[0].left - leftmost))
        for node in rank:
            node.left -= shift
            node.targets.sort(key=lambda target: target.left)
    # Nodes move from under arrows to other targets, so that no two lines share a column.
    for above, below in pairwise(ranks):
        for node in below:
            others = {s.port(i) for s in above for i, target in enumerate(s.targets) if target is not node}
            while node.middle in others:
                node.left += 1


def _wanted(above: Sequence[Node]) -> dict[str, int]:
    ports: dict[str, list[int]] = defaultdict(list)
    for node in above:
        for index, target in enumerate(node.targets):
            ports[target.name].append(node.port(index))
    return {name: sum(columns) // len(columns) for name, columns in ports.items()}


def _spread(rank: Sequence[Node], wanted: Mapping[str, int]) -> None:
    """Places the nodes of a rank from left to right without overlap, then shifts them together to their average preference."""
    end = -_GAP
    off = 0
    for index, node in enumerate(rank):
        goal = wanted.get(node.name, end + _GAP + (node.width - 1) // 2) - (node.width - 1) // 2
        node.left = goal if index == 0 else max(goal, end + _GAP)
        off += node.left - goal
        end = node.left + node.width
    for node in rank:
        node.left -= round(off / len(rank))


_WIDTH = 80
_FRAME = 2


def draw(pipeline: Pipeline, places: Mapping[str, Sequence[str]] | None = None, *, ascii_only: bool = False) -> str:
    """Stages as boxes with name, kind and places, if given, outputs as words below them, arrows from producers to consumers, in 80
    columns unless long names or many arrows need more. ascii_only: for terminals without line characters."""
    stages = [
        Node(stage.name, (stage.name, stage.kind, *(places or {}).get(stage.name, ())), framed=True)
        for stage in pipeline.order()
    ]
    outputs = [Node(f"output {output.modality}", (output.modality,)) for output in pipeline.outputs]
    arrows = [(edge.producer, edge.consumer) for edge in pipeline.edges]
    arrows += [(output.stage, f"output {output.modality}") for output in pipeline.outputs]
    canvas, y = Canvas(), 0
    ranks = lay_out([*stages, *outputs], arrows, _WIDTH)
    for number, rank in enumerate(ranks):
        height = max(_height(node) for node in rank)
        for node in rank:
            _draw_node(canvas, node, y, height)
        below = ranks[number + 1] if number + 1 < len(ranks) else []
        y += height + _draw_arrows(canvas, rank, below, y + height)
    return canvas.render(ascii_only=ascii_only)


def _height(node: Node) -> int:
    return len(node.lines) + (_FRAME if node.framed else 0)


def _draw_node(canvas: Canvas, node: Node, y: int, height: int) -> None:
    if node.framed:
        canvas.box(y, node.left, tuple(line.ljust(node.width - 4) for line in node.lines))
        for index in range(len(node.targets)):
            canvas.leave(y + _height(node) - 1, node.port(index))
    elif node.lines:
        canvas.text(y, node.left, node.lines[0])
    else:
        canvas.down(node.left, y, y + height - 1, node.name, from_above=True)


@dataclass(slots=True)
class _Bundle:
    """All arrows into one node: they join in one horizontal stroke, `level` lines of text below their sources."""

    target: Node
    columns: list[int]
    level: int = 0

    @property
    def first(self) -> int:
        return min(*self.columns, self.target.middle)

    @property
    def last(self) -> int:
        return max(*self.columns, self.target.middle)

    def touches(self, other: "_Bundle") -> bool:
        return self.first <= other.last + 1 and other.first <= self.last + 1


def _draw_arrows(canvas: Canvas, above: Sequence[Node], below: Sequence[Node], top: int) -> int:
    """Returns the number of text lines drawn, the last one with arrowheads."""
    if not below:
        return 0
    bundles = []
    for target in below:
        columns = [node.port(i) for node in above for i, other in enumerate(node.targets) if other is target]
        if columns:
            bundles.append(_Bundle(target, columns))
    turns = [bundle for bundle in bundles if bundle.first < bundle.last]
    turning = _assign_levels(turns)
    for bundle in turns:
        canvas.across(top + bundle.level, bundle.first, bundle.last, bundle.target.name)
    for bundle in bundles:
        name, turn = bundle.target.name, top + bundle.level
        for column in bundle.columns:
            canvas.down(column, top, turn, name, from_above=True)
        canvas.down(bundle.target.middle, turn, top + turning, name)
        if bundle.target.lines:
            canvas.text(top + turning, bundle.target.middle, "▼")
    return turning + 1


def _assign_levels(bundles: Sequence[_Bundle]) -> int:
    """Overlapping strokes get different levels. Returns the number of levels."""
    levels: list[list[_Bundle]] = []
    # Arrows that go further to a side turn higher up, so that arrows from one box do not cross.
    for bundle in sorted(bundles, key=lambda one: -one.last if one.first < one.target.middle else one.first):
        bundle.level = next((n for n, level in enumerate(levels) if not any(map(bundle.touches, level))), len(levels))
        if bundle.level == len(levels):
            levels.append([])
        levels[bundle.level].append(bundle)
    return len(levels)
