"""Time of one call among many, without the host's share."""

import math
import statistics
import time
from collections.abc import Sequence

import torch

from bench.kernel_cases import Call, KernelCase
from bench.replay import replayed_seconds

_CACHE = 160 * 2**20
"""More than any L2 cache: a call reads from memory if other calls read this many bytes in between."""
_MOST_COPIES = 48
_SMALL = 8 * 2**20
"""Activations of fewer bytes are in the L2 cache when their kernel runs."""
_LAUNCHES = 16


def seconds_of(case: KernelCase, device: torch.device) -> float:
    """Median over replays of a graph of calls that take turns on as many sets of buffers as it takes; on the CPU, without one."""
    if device.type == "cpu":
        return _on_host([case.make()])
    rotated = case.big or (case.bytes if case.bytes > _SMALL else 0)
    copies = min(_MOST_COPIES, math.ceil(_CACHE / rotated) + 1) if rotated else 1
    calls = [case.make() for _ in range(copies)]
    return replayed_seconds([calls[turn % copies] for turn in range(max(copies, _LAUNCHES))])


def _on_host(calls: Sequence[Call]) -> float:
    times = []
    for _ in range(3):
        for call in calls:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return float(statistics.median(times))
