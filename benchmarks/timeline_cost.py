"""Cost of a timeline, off and on.

    python benchmarks/timeline_cost.py [--device cuda] [--repeats 200] [--json FILE]

Host time of a launch of an empty phase: by a device whose `launch` has no observers, by one without an observer now, and
recorded. The three take turns in blocks, so that other load of the machine affects all of them alike; the medians of the blocks
count. On a CUDA device besides: what recording adds to the time of phases on the device, launched one by one, and of a graph of
eight, captured as a whole or (watched) phase by phase.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from bench.arguments import device_here, output_file, positive_int
from bench.report import environment, print_facts, write_json
from omni.device import Device, Launch, open_device
from omni.device.base import Phase, Stream
from omni.device.cpu import CpuDevice
from omni.timeline import Timeline

_BLOCK = 500
"""Launches of a block."""
_PHASES = 8
"""Phases of a graph."""


class _Unwatchable(CpuDevice):
    """A device whose `launch` has no observers."""

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        outer, self.launching = self.launching, phase.__name__
        try:
            with self.on(stream):
                phase(*buffers)
        except Exception as error:
            error.add_note(f"in phase {phase.__name__}")
            raise
        finally:
            self.launching = outer


def nothing() -> None:
    """A phase."""


def touch(rows: Tensor) -> None:
    """A phase of one small kernel."""
    rows.add_(1)


def launch_times(repeats: int) -> dict[str, float]:
    """Nanoseconds of a launch on the CPU."""
    unwatchable, off, on = _Unwatchable(), CpuDevice(), CpuDevice()
    timeline = Timeline(on)
    took: dict[str, list[float]] = {"launch without observers": [], "launch, timeline off": [], "launch, recorded": []}
    for _ in range(repeats):
        timeline.start()
        for name, device in zip(took, (unwatchable, off, on), strict=True):
            stream = device.stream("s")
            start = time.perf_counter_ns()
            for _ in range(_BLOCK):
                device.launch(stream, nothing)
            took[name].append((time.perf_counter_ns() - start) / _BLOCK)
    return {name: statistics.median(blocks) for name, blocks in took.items()}


def device_times(device: Device, repeats: int) -> dict[str, float]:
    """Nanoseconds of a phase, on the host and until the device is through with it."""
    stream, rows = device.stream("s"), device.zeros((1 << 20,), torch.float32)
    launches = [Launch.of(touch, rows)] * _PHASES
    whole = device.capture(stream, "whole", launches)
    timeline = Timeline(device)
    parts = device.capture(stream, "parts", launches)
    observer = device.launch_observer

    def one_by_one() -> None:
        for _ in range(_PHASES):
            device.launch(stream, touch, rows)

    cases: dict[str, tuple[Callable[[], None], bool]] = {
        "one by one": (one_by_one, False),
        "one by one, recorded": (one_by_one, True),
        "graph": (lambda: device.replay(stream, whole), False),
        "graph, recorded as a whole": (lambda: device.replay(stream, whole), True),
        "graph by phase": (lambda: device.replay(stream, parts), False),
        "graph by phase, recorded": (lambda: device.replay(stream, parts), True),
    }
    report: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, (run, recorded) in cases.items():
            device.launch_observer = observer if recorded else None
            timeline.start()
            report[name].append(_timed(device, run))
            timeline.stop()
    timeline.close()
    times = {}
    for name, pairs in report.items():
        times[f"{name}, host"] = statistics.median(host for host, _ in pairs)
        times[f"{name}, until done"] = statistics.median(done for _, done in pairs)
    return times


def _timed(device: Device, run: Callable[[], None]) -> tuple[float, float]:
    """Nanoseconds a phase: of the host, and until all is done."""
    count = 50
    device.synchronize()
    start = time.perf_counter_ns()
    for _ in range(count):
        run()
    launched = time.perf_counter_ns()
    device.synchronize()
    phases = count * _PHASES
    return (launched - start) / phases, (time.perf_counter_ns() - start) / phases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", type=device_here("--device cpu"), default="cpu")
    parser.add_argument("--repeats", type=positive_int, default=200, help="blocks of each case")
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with torch.inference_mode():
        times = launch_times(arguments.repeats)
        if arguments.device != "cpu":
            times |= device_times(open_device(arguments.device), max(arguments.repeats // 10, 5))
    for name, nanoseconds in times.items():
        print(f"{name:44} {nanoseconds:9.0f} ns")
    facts = environment()
    print_facts(facts)
    write_json(arguments.json, times, facts)


if __name__ == "__main__":
    main()
