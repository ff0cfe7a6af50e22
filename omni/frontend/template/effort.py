"""Limits on the cost of rendering a template.

A template is a program of the checkpoint. It ends because each iteration of a loop and each call checks the time, and because no
operation in between makes more than `MAX_MADE` characters.
"""

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

from jinja2.exceptions import SecurityError

SECONDS = 2.0
"""CPU time of one rendering, of its own thread, so that a busy machine causes no error."""
MAX_MADE = 2**27
"""Characters that one rendering may make, including discarded ones. An entry of a list counts as eight."""
MAX_ENTRIES = 2**18
"""Maximum entries of a list or table, including nested ones."""
MAX_SLOW = 2**20
"""Characters of the input of a slow filter."""
_ENTRY = 8
_COLLECTIONS = (list, tuple, dict)
_MAX_BITS = 4096
"""Maximum size of integers."""
_MAX_NUMBER = 2**16
_WIDE = re.compile(r"\d{6}")
"""A width in a format pattern that only wastes memory."""


class _Effort(threading.local):
    """State of the rendering in this thread. end: seconds of the thread's CPU time."""

    end = float("inf")
    left = MAX_MADE


_effort = _Effort()


@contextmanager
def limited() -> Iterator[None]:
    """Bounds this thread's effort: `tick` and `make` raise SecurityError once it is spent."""
    _effort.end, _effort.left = time.thread_time() + SECONDS, MAX_MADE
    try:
        yield
    finally:
        _effort.end, _effort.left = float("inf"), MAX_MADE


def tick() -> None:
    if time.thread_time() > _effort.end:
        raise SecurityError(f"takes more than {SECONDS:g} s")


def make(value: object) -> None:
    """Counts a new value. Only texts and collections have a cost."""
    if isinstance(value, _COLLECTIONS):
        _effort.left -= _ENTRY * len(value)
        if _entries(value, {}) > MAX_ENTRIES:
            raise SecurityError(f"nests more than {MAX_ENTRIES:,} entries")
    else:
        _effort.left -= _length(value)
    if _effort.left < 0:
        raise _too_much()


def check_call(arguments: Sequence[object], named: Mapping[str, object]) -> None:
    """Call before a method or filter that lengthens its first argument, at most by the factors of the others."""
    first, *others = *arguments, *named.values()
    check_numbers(others)
    times = prod(max(value, 1) for value in others if isinstance(value, int))
    if max(_length(first), 1) * times * max([1, *map(_length, others)]) > MAX_MADE:
        raise _too_much()


def check_split(text: object, separator: object) -> None:
    """Call before a text is split. separator: None for white space."""
    if isinstance(text, str):
        parts = text.count(separator) if isinstance(separator, str) and separator else len(text) // 2
        if parts > MAX_ENTRIES:
            raise SecurityError(f"splits a text into more than {MAX_ENTRIES:,} parts")


def check_length(text: object) -> None:
    if _length(text) > MAX_SLOW:
        raise SecurityError(f"has a filter read more than {MAX_SLOW:,} characters")


def check_numbers(values: Iterable[object]) -> None:
    """Call before operations with numbers: widths, precisions, counts."""
    if any(isinstance(value, int) and abs(value) > _MAX_NUMBER for value in values):
        raise SecurityError(f"uses a number above {_MAX_NUMBER:,}")


def check_pattern(pattern: str) -> None:
    if _WIDE.search(pattern):
        raise _too_much()


def check_operator(operator: str, left: object, right: object) -> None:
    """Call before `+`, `*`, `%` or `**`."""
    match operator, left, right:
        case "**", int(), int():
            fits = left.bit_length() * max(right, 0) <= _MAX_BITS
        case "*", int(), int():
            fits = left.bit_length() + right.bit_length() <= _MAX_BITS
        case "+", _, _:
            fits = _length(left) + _length(right) <= MAX_MADE
        case "%", str(), _:
            check_pattern(left)
            check_numbers((right if isinstance(right, tuple) else (right,)) if "*" in left else ())
            fits = True
        case _:
            fits = _size(left) * _size(right) <= MAX_MADE
    if not fits:
        raise _too_much()


def _size(value: object) -> int:
    return abs(value) if isinstance(value, int) else _length(value)


def _length(value: object) -> int:
    return len(value) if isinstance(value, (str, bytes, *_COLLECTIONS)) else 0


def _entries(value: object, known: dict[int, int]) -> int:
    """Entries of a collection and of nested ones, each as often as it would be written or compared. known: counts by identity."""
    if not isinstance(value, _COLLECTIONS):
        return 1
    if id(value) not in known:
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_entries(each, known) for each in inner)
    return known[id(value)]


def _too_much() -> SecurityError:
    return SecurityError(f"makes more than {MAX_MADE:,} characters")
