"""The header of a result, and the format of its numbers."""

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from bench.replay import event_seconds

_ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """command, commit, hardware, host speed, versions."""
    cuda = torch.cuda.is_available()
    return {
        "command": " ".join(["python", *sys.argv]),
        "commit": _commit(),
        "hardware": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "host": f"{host_loop():.0f} us a loop",
        "torch": torch.__version__,
        "triton": _triton(),
        "python": platform.python_version(),
    }


def _triton() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:
        return "none"


def host_loop() -> float:
    """Microseconds of a fixed loop of plain Python, the median of 50: host times of machines of several speeds compare by it."""
    times = []
    for _ in range(50):
        start = time.perf_counter_ns()
        total = 0
        for number in range(10_000):
            total += number
        times.append((time.perf_counter_ns() - start) / 1000)
    return statistics.median(times)


def _commit() -> str:
    try:
        found = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=_ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return "unknown (no git here)"
    return found.stdout.strip() or "unknown (no repository here)"


def copy_bandwidth(gibibytes: float = 2.0) -> float:
    """Bytes per second, read and written, of a device-to-device copy: what memory-bound work is measured by."""
    source = torch.empty(int(gibibytes * 2**30), dtype=torch.uint8, device="cuda").random_(0, 255)
    target = torch.empty_like(source)
    return 2 * source.nbytes / event_seconds(lambda: target.copy_(source), 10)


def write_json(path: Path | None, numbers: object, facts: Mapping[str, object]) -> None:
    """Writes a report; a no-op if `path` is None."""
    if path is not None:
        path.write_text(json.dumps({"facts": facts, "numbers": numbers}, indent=1, default=str))


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """The first column to the left, the others to the right."""
    cells = [tuple(header), *(tuple(_cell(value) for value in row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        first, *rest = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join((first, *rest)).rstrip(), flush=True)


def print_facts(facts: Mapping[str, object]) -> None:
    print(", ".join(f"{name} {value}" for name, value in facts.items()), flush=True)


@contextmanager
def reported(step: str) -> Iterator[None]:
    """Prints the step to standard error at its beginning, and its seconds at its end: tables are printed at the end only."""
    print(f"{step} ... ", end="", file=sys.stderr, flush=True)
    began = time.perf_counter()
    yield
    print(f"{time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
