"""Drawings of pipelines, read back with a finger on the lines."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni.cli.drawing import draw
from omni.pipeline import Edge, Pipeline, PipelineOutput, Stage

Graph = tuple[list[str], set[tuple[int, int]], dict[str, int]]
"""Stages; arrows between them, by number; the stage that gives each output."""

UP, DOWN, LEFT, RIGHT = (-1, 0), (1, 0), (0, -1), (0, 1)
ARMS = {
    "│": (UP, DOWN),
    "─": (LEFT, RIGHT),
    "┌": (DOWN, RIGHT),
    "┐": (DOWN, LEFT),
    "└": (UP, RIGHT),
    "┘": (UP, LEFT),
    "├": (UP, DOWN, RIGHT),
    "┤": (UP, DOWN, LEFT),
    "┬": (DOWN, LEFT, RIGHT),
    "┴": (UP, LEFT, RIGHT),
    "┼": (UP, DOWN, LEFT, RIGHT),
}


class NoOptions(msgspec.Struct, frozen=True):
    pass


def pipeline(names: list[str], arrows: set[tuple[int, int]], ends: dict[str, int]) -> Pipeline:
    return Pipeline(
        family="drawn",
        stages=tuple(Stage(name=name, kind="ar", model="m:f", options=NoOptions()) for name in names),
        edges=tuple(Edge(producer=names[a], consumer=names[b]) for a, b in sorted(arrows)),
        outputs=tuple(PipelineOutput(modality=modality, stage=names[n]) for modality, n in ends.items()),
        frontend="m:f",
    )


class Reader:
    """Follows lines from the foot of a box to the points of arrows."""

    def __init__(self, drawing: str, names: list[str]) -> None:
        self.rows = drawing.splitlines()
        self.places = {name: self._find(name) for name in names}

    def _find(self, name: str) -> tuple[int, int, int]:
        """Row, and first and last column of a word."""
        for row, line in enumerate(self.rows):
            if name in line.replace("│", " ").split():
                first = f" {line} ".replace("│", " ").index(f" {name} ")
                return row, first, first + len(name) - 1
        raise AssertionError(f"{name} is not drawn")

    def at(self, row: int, column: int) -> str:
        return self.rows[row][column] if row < len(self.rows) and 0 <= column < len(self.rows[row]) else " "

    def targets(self, name: str) -> list[str]:
        """The targets of the arrows out of a box."""
        row, first, _ = self.places[name]
        foot = row + 2
        column, found = first - 1, []
        while self.at(foot, column) != "┘":
            if self.at(foot, column) == "┬":
                found.append(self._follow(foot + 1, column))
            column += 1
        return sorted(found)

    def _follow(self, row: int, column: int) -> str:
        reached, seen, todo = set(), set(), [(row, column, DOWN)]
        while todo:
            row, column, going = todo.pop()
            mark, back = self.at(row, column), (-going[0], -going[1])
            if mark == "▼":
                reached.add(self._below(row + 1, column))
            elif (mark == "┬" and going == UP) or mark == " ":
                assert going == UP, f"a line ends in nothing at {row}, {column}"
            elif back in ARMS[mark]:
                arms = [arm for arm in ARMS[mark] if arm != back and arm != UP]
                todo += [(row + y, column + x, (y, x)) for y, x in arms if (row, column, y, x) not in seen]
                seen |= {(row, column, y, x) for y, x in arms}
            else:
                assert (mark, going[0]) == ("│", 0), f"a line runs into {mark} at {row}, {column}"
                todo.append((row + going[0], column + going[1], going))
        (target,) = reached
        return target

    def _below(self, row: int, column: int) -> str:
        for name, (at, first, last) in self.places.items():
            boxed = at == row + 1 and first - 2 <= column and self.at(row, column) == "─"
            boxed = boxed and "┐" not in self.rows[row][first - 2 : column]
            if boxed or (at == row and first <= column <= last):
                return name
        raise AssertionError(f"an arrow points at nothing at {row}, {column}")


@st.composite
def graphs(draw_from: st.DrawFn, most: int) -> Graph:
    count = draw_from(st.integers(1, most))
    names = [f"{chr(97 + n)}{'x' * draw_from(st.integers(0, 14))}" for n in range(count)]
    pairs = [(a, b) for b in range(count) for a in range(b)]
    arrows = draw_from(st.sets(st.sampled_from(pairs), max_size=12)) if pairs else set()
    sinks = [n for n in range(count) if not any(a == n for a, _ in arrows)]
    ends = [*sinks, *draw_from(st.lists(st.integers(0, count - 1), max_size=2))]
    return names, arrows, {f"{'out' * draw_from(st.integers(1, 2))}{i}": n for i, n in enumerate(ends)}


@given(graphs(most=8))
def test_every_arrow_is_drawn_and_leads_where_it_should(graph: Graph) -> None:
    names, arrows, ends = graph
    reader = Reader(draw(pipeline(names, arrows, ends)), [*names, *ends])
    for number, name in enumerate(names):
        wanted = [names[b] for a, b in arrows if a == number] + [end for end, n in ends.items() if n == number]
        assert reader.targets(name) == sorted(wanted)


@given(graphs(most=5))
def test_no_line_is_wider_than_the_terminal(graph: Graph) -> None:
    drawing = draw(pipeline(*graph))
    assert max(map(len, drawing.splitlines())) <= 80, drawing


@given(graphs(most=8))
def test_a_drawing_in_ascii_has_the_same_lines(graph: Graph) -> None:
    drawing = draw(pipeline(*graph), ascii_only=True)
    assert drawing.isascii()
    assert drawing == draw(pipeline(*graph)).translate(str.maketrans("│─▼┌┐└┘├┤┬┴┼", "|-v+++++++++"))


@pytest.mark.parametrize("count", [2, 5, 9, 12])
def test_many_sources_fit_into_the_terminal(count: int) -> None:
    names = [f"encoder_{number}" for number in range(count)]
    drawing = draw(pipeline([*names, "thinker"], {(n, count) for n in range(count)}, {"text": count}))
    assert max(map(len, drawing.splitlines())) <= 80
    reader = Reader(drawing, [*names, "thinker", "text"])
    assert all(reader.targets(name) == ["thinker"] for name in names)
