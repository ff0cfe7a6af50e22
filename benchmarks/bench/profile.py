"""Which kernels a stretch of work is made of, as CUPTI tells: it slows the host down, so no time of it counts as a result."""

from collections import defaultdict
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from bench.report import print_table


def print_kernels(run: Callable[[], None], steps: int, most: int = 16) -> None:
    """Runs it and prints device time a step of the kernels that take the longest, and how long nothing ran."""
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
    times: dict[str, list[int]] = defaultdict(list)
    busy, until = 0, spans[0][0]
    for start, end, name in spans:
        times[name].append(end - start)
        busy += max(0, end - max(start, until))
        until = max(until, end)
    wall = until - spans[0][0]
    print(
        f"{steps} steps: {wall / steps / 1000:.0f} us a step, of which nothing ran for {(wall - busy) / steps / 1000:.0f} us"
    )
    longest = sorted(times.items(), key=lambda item: -sum(item[1]))[:most]
    print_table(
        ("kernel", "us a step", "launches a step", "us each"),
        [
            (name[:70], f"{sum(t) / steps / 1000:.1f}", f"{len(t) / steps:.1f}", f"{sum(t) / len(t) / 1000:.2f}")
            for name, t in longest
        ],
    )
