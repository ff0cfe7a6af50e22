"""The durations of a start, by part."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec


class StartReport(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an engine's start, in order, in seconds; and the variants of Triton kernels.

    load_seconds: weights and buffers.
    compile_seconds: the wait for processes that compile kernels, after that.
    measure_seconds: the memory of the largest steps, which are run.
    capture_seconds: pages, and the captures that the engine does not defer.
    kernels_known: variants that an earlier start had compiled.
    kernels_compiled: variants that processes compiled meanwhile.
    kernels_late: those that the engine compiled itself, one after the other, at their first launches.
    """

    load_seconds: float = 0.0
    compile_seconds: float = 0.0
    measure_seconds: float = 0.0
    capture_seconds: float = 0.0
    kernels_known: int = 0
    kernels_compiled: int = 0
    kernels_late: int = 0

    @property
    def seconds(self) -> float:
        return self.load_seconds + self.compile_seconds + self.measure_seconds + self.capture_seconds


class StartClock:
    """seconds: by field of `StartReport`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Times a part, `load` for `load_seconds`."""
        since = time.perf_counter()
        yield
        self.seconds[f"{name}_seconds"] = time.perf_counter() - since
