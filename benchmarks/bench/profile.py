"""Which kernels a stretch of work is made of, as CUPTI tells: it slows the host down, so no time of it counts as a result."""

from collections import defaultdict
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from bench.report import print_table


def print_kernels(run: Callable[[], None], steps: int, most: int = 16) -> None:
    """Runs it and prints which kernels make the steps as long as they are.

    A kernel's time is from the end of the one that ended before it to its own end: what it adds, where kernels overlap, and the
    wait before it, where nothing runs. So the times of all kernels are those of the steps. Kernels are told apart by their
    predecessors: layers use the same one in several places.
    """
    if not torch.cuda.is_available():
        print("no CUDA device, no kernels")
        return
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
    results = profiler.profiler.kineto_results
    events = [event for event in results.events() if event.device_type().name == "CUDA"]
    spans = sorted((event.start_ns(), event.start_ns() + event.duration_ns(), event.name()) for event in events)
    if not spans:
        print("no kernel was seen")
        return
    # By the end of what ended before: of kernels that overlap, each counts for what it adds.
    spans.sort(key=lambda span: span[1])
    added: dict[tuple[str, str], list[int]] = defaultdict(list)
    until, before = spans[0][0], ""
    for _, end, name in spans:
        added[name, before].append(end - until)
        until, before = end, name
    print(f"{steps} steps: {(until - spans[0][0]) / steps / 1000:.0f} us a step")
    longest = sorted(added.items(), key=lambda item: -sum(item[1]))[:most]
    print_table(
        ("kernel (after)", "us a step", "launches a step", "us each"),
        [
            (
                f"{name[:50]} ({before[:30]})",
                f"{sum(t) / steps / 1000:.1f}",
                f"{len(t) / steps:.1f}",
                f"{sum(t) / len(t) / 1000:.2f}",
            )
            for (name, before), t in longest
        ],
    )
