"""Ctrl-C in every place: KeyboardInterrupt raised in this thread at the n-th line of the package's own code."""

import linecache
import sys
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any


class Interrupter:
    """Raises KeyboardInterrupt in place of the `at`-th line that `action` runs of files whose path holds one of `places`.

    Finalizers are left alone: no caller gets their errors.
    """

    def __init__(self, at: int, places: Sequence[str]) -> None:
        self.where = ""
        self._left = at
        self._places = places

    @property
    def happened(self) -> bool:
        return bool(self.where)

    def run(self, action: Callable[[], object]) -> None:
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            action()
        except KeyboardInterrupt:
            assert self.happened
        finally:
            sys.settrace(before)

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        ours = any(place in code.co_filename for place in self._places)
        return self._line if ours and not self.happened and not _in_finalizer(frame) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event != "line" or self.happened or _opens_or_leaves_a_block(frame):
            return self._line
        self._left -= 1
        if self._left >= 0:
            return self._line
        self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        raise KeyboardInterrupt


def _opens_or_leaves_a_block(frame: FrameType) -> bool:
    """A `with` is a line again as it is left, before its lock is released: there Python looks for no signals."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


def _in_finalizer(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is _FINALIZER:
            return True
        frame = frame.f_back
    return False


_FINALIZER = weakref.finalize.__call__.__code__


def everywhere(
    action: Callable[[], object], after: Callable[[str], object], places: Sequence[str], stride: int = 1
) -> int:
    """Runs `action` again and again, interrupted `stride` lines later each time, and `after` with the place. Returns how often."""
    for count in range(10_000):
        interrupter = Interrupter(count * stride, places)
        interrupter.run(action)
        if not interrupter.happened:
            return count
        after(interrupter.where)
    raise AssertionError("it never comes to its end")
