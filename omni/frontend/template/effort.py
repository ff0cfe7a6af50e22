"""What one rendering of a template may cost.

A template is a program that a checkpoint brings along. It ends because each turn of a loop and each call looks at the clock, and
because no single operation between two looks makes more than `MAX_MADE` of anything.
"""

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

from jinja2.exceptions import SecurityError

SECONDS = 2.0
"""CPU time of one rendering, of its own thread: a machine that is busy with other things makes none too slow."""
MAX_MADE = 2**27
"""Characters that one rendering may make, those that it throws away included. An entry of a list counts as eight."""
MAX_ENTRIES = 2**18
"""Of a list or table, and of those in it."""
MAX_SLOW = 2**20
"""Characters that a filter reads which takes long for each."""
_ENTRY = 8
_COLLECTIONS = (list, tuple, dict)
_MAX_BITS = 4096
"""Of integers."""
_MAX_NUMBER = 2**16
_WIDE = re.compile(r"\d{6}")
"""In a pattern of a format: a width that only wastes memory."""


class _Effort(threading.local):
    """Of the rendering that is under way in this thread. end: seconds of the thread's CPU time."""

    end = float("inf")
    left = MAX_MADE


_effort = _Effort()


@contextmanager
def limited() -> Iterator[None]:
    """While entered, this thread's effort is bounded: `tick` and `make` raise SecurityError once it is spent."""
    _effort.end, _effort.left = time.thread_time() + SECONDS, MAX_MADE
    try:
        yield
    finally:
        _effort.end, _effort.left = float("inf"), MAX_MADE


def tick() -> None:
    if time.thread_time() > _effort.end:
        raise SecurityError(f"takes more than {SECONDS:g} s")


def make(value: object) -> None:
    """To be called with what was made. What is no text or collection costs nothing."""
    if isinstance(value, _COLLECTIONS):
        _effort.left -= _ENTRY * len(value)
        if _entries(value, {}) > MAX_ENTRIES:
            raise SecurityError(f"nests more than {MAX_ENTRIES:,} entries")
    else:
        _effort.left -= _length(value)
    if _effort.left < 0:
        raise _too_much()


def check_call(arguments: Sequence[object], named: Mapping[str, object]) -> None:
    """To be called before a method or filter that makes its first argument longer: as often as the others say, at most."""
    first, *others = *arguments, *named.values()
    check_numbers(others)
    times = prod(max(value, 1) for value in others if isinstance(value, int))
    if max(_length(first), 1) * times * max([1, *map(_length, others)]) > MAX_MADE:
        raise _too_much()


def check_split(text: object, separator: object) -> None:
    """To be called before a text is split. separator: None for white space."""
    if isinstance(text, str):
        parts = text.count(separator) if isinstance(separator, str) and separator else len(text) // 2
        if parts > MAX_ENTRIES:
            raise SecurityError(f"splits a text into more than {MAX_ENTRIES:,} parts")


def check_length(text: object) -> None:
    """To be called before a filter that takes long for each character."""
    if _length(text) > MAX_SLOW:
        raise SecurityError(f"has a filter read more than {MAX_SLOW:,} characters")


def check_numbers(values: Iterable[object]) -> None:
    """To be called before whatever takes numbers: widths, precisions, counts."""
    if any(isinstance(value, int) and abs(value) > _MAX_NUMBER for value in values):
        raise SecurityError(f"asks for more than {_MAX_NUMBER:,} of something")


def check_pattern(pattern: str) -> None:
    """To be called before a pattern of a format is used."""
    if _WIDE.search(pattern):
        raise _too_much()


def check_operator(operator: str, left: object, right: object) -> None:
    """To be called before `+`, `*`, `%` or `**`."""
    match operator, left, right:
        case "**", int(), int():
            fits = left.bit_length() * max(right, 0) <= _MAX_BITS
        case "*", int(), int():
            fits = left.bit_length() + right.bit_length() <= _MAX_BITS
        case "+", _, _:
            fits = _length(left) + _length(right) <= MAX_MADE
        case "%", str(), _:
            check_pattern(left)
            check_numbers(_each(right) if "*" in left else ())
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
    """Entries of a collection and of those in it, each as often as it would be written or compared: one list may stand in another
    twice, and that one in a third. known: by identity, of what was looked at."""
    if not isinstance(value, _COLLECTIONS):
        return 1
    if id(value) not in known:
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_entries(each, known) for each in inner)
    return known[id(value)]


def _each(value: object) -> Sequence[object]:
    return value if isinstance(value, tuple) else (value,)


def _too_much() -> SecurityError:
    return SecurityError(f"makes more than {MAX_MADE:,} characters")
