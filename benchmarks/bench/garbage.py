"""Full garbage collections of the program that measures: it reads nothing meanwhile."""

import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def full_collections() -> Iterator[list[float]]:
    """Gives the seconds of each, while entered."""
    seconds: list[float] = []
    since = 0.0

    def collected(phase: str, info: Mapping[str, int]) -> None:
        nonlocal since
        if info["generation"] < 2:
            return
        if phase == "start":
            since = time.perf_counter()
        else:
            seconds.append(time.perf_counter() - since)

    gc.callbacks.append(collected)
    try:
        yield seconds
    finally:
        gc.callbacks.remove(collected)
