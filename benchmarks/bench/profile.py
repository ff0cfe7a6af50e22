"""Kernels of a stretch of work, recorded by CUPTI. It slows the host down, so its host times are not results."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from bench.report import print_table


class KernelSpan(NamedTuple):
    """A kernel or a copy. start, end: ns."""

    start: int
    end: int
    name: str


class Added(NamedTuple):
    """One launch, in ns. longer: from the previous end to its own end. waited: the part of that before it ran."""

    longer: int
    waited: int


def added_by_launch(spans: Iterable[KernelSpan]) -> dict[tuple[str, str], list[Added]]:
    """Launches by name, and the name of the previous one. Kernels overlap: their sum is the time from the first end to the last."""
    found: dict[tuple[str, str], list[Added]] = defaultdict(list)
    for before, span in pairwise(sorted(spans, key=lambda span: span.end)):
        found[span.name, before.name].append(Added(span.end - before.end, max(0, span.start - before.end)))
    return found


def print_kernels(run: Callable[[], None], steps: int, most: int = 16) -> None:
    """Runs the steps and prints the kernels and copies that add to their time.

    For each: the time that it adds to a step, and the part of that without work. Kernels are distinguished by the previous one,
    since layers use one kernel in several places. Work on another stream takes its part from the next kernel that ends.
    """
    if not torch.cuda.is_available():
        print("no CUDA device, no kernels")
        return
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
    events = (event for event in profiler.profiler.kineto_results.events() if event.device_type().name == "CUDA")
    spans = [KernelSpan(event.start_ns(), event.start_ns() + event.duration_ns(), event.name()) for event in events]
    found = added_by_launch(spans)
    if not found:
        print("no kernel was seen")
        return
    added = {names: (_us(one.longer for one in of), _us(one.waited for one in of)) for names, of in found.items()}
    longer, waited = (sum(column) / steps for column in zip(*added.values(), strict=True))
    print(f"{steps} steps: {longer:.0f} us a step, of which nothing ran for {waited:.0f} us")
    longest = sorted(added.items(), key=lambda item: -item[1][0])[:most]
    print_table(
        ("kernel (after)", "adds us a step", "of it waiting", "launches a step", "adds us each"),
        [
            (
                f"{name[:50]} ({before[:30]})",
                f"{us / steps:.1f}",
                f"{idle / steps:.1f}",
                f"{len(found[name, before]) / steps:.1f}",
                f"{us / len(found[name, before]):.2f}",
            )
            for (name, before), (us, idle) in longest
        ],
    )


def _us(times: Iterable[int]) -> float:
    return sum(times) / 1000
