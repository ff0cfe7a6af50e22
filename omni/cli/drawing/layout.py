"""The layout of a graph's boxes: in ranks from the top down, with every arrow pointing down by one rank."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_GAP = 3


@dataclass(slots=True)
class Node:
    """lines: its text; empty for a point on a long arrow. framed: whether it is a box.

    rank, left: its position. targets: of its arrows, nodes one rank below, from left to right.
    """

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
    """Sets the nodes' positions and returns the ranks, with points added where an arrow skips one.

    nodes: sources of arrows before their targets. width: columns to stay within, if the graph allows it.
    """
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
    """The preferred column of each target."""
    ports: dict[str, list[int]] = defaultdict(list)
    for node in above:
        for index, target in enumerate(node.targets):
            ports[target.name].append(node.port(index))
    return {name: sum(columns) // len(columns) for name, columns in ports.items()}


def _spread(rank: Sequence[Node], wanted: Mapping[str, int]) -> None:
    """From left to right without overlap, then shifted together to their average preference."""
    end = -_GAP
    off = 0
    for index, node in enumerate(rank):
        goal = wanted.get(node.name, end + _GAP + (node.width - 1) // 2) - (node.width - 1) // 2
        node.left = goal if index == 0 else max(goal, end + _GAP)
        off += node.left - goal
        end = node.left + node.width
    for node in rank:
        node.left -= round(off / len(rank))
