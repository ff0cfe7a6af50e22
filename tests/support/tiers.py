"""Parametrized tests with a few cases in the default run."""

from collections.abc import Iterable

import pytest

SLOW, MUTATION = pytest.mark.slow, pytest.mark.mutation


def few(count: int, cases: Iterable[object], rest: pytest.MarkDecorator = MUTATION) -> list[object]:
    """The first `count` cases as they are, the others marked `rest`. A case that is a tuple is of as many arguments."""
    return [case if number < count else _marked(case, rest) for number, case in enumerate(cases)]


def chosen(names: Iterable[object], cases: Iterable[object], rest: pytest.MarkDecorator = SLOW) -> list[object]:
    """The cases named as they are and first, the others marked `rest`."""
    names = list(names)
    return [*names, *(_marked(case, rest) for case in cases if case not in names)]


def _marked(case: object, mark: pytest.MarkDecorator) -> object:
    return pytest.param(*case, marks=mark) if isinstance(case, tuple) else pytest.param(case, marks=mark)
