"""A frame of Qwen3-Omni's talker: its step, with the codes of all groups.

    python benchmarks/frames.py [--rows 1 8 32] [--frames 250] [--eager] [--profile] [--json FILE]

Thinker and talker run on one device; the vocoder is left out, and frames are gathered on the device. Every request has its own
prompt of 512 ids, of which the thinker lends 128 hidden states to the talker. The thinker ends after a few tokens. A frame's time
is that between the token points of two talker steps in a row, on the device's clock, over the steps launched after the thinker's
last. `--profile` prints the kernels of such steps, and the time that each adds. `bench/targets.py` has the origin of `must` and
`aim`.
"""

import argparse
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import weights
from bench.arguments import at_least, device_here, output_file, positive_int
from bench.device import open_timed
from bench.emit import THINKER
from bench.engine import BenchEngine
from bench.handoff_families import OmniFamily, Setup
from bench.pipelines import TALKER
from bench.profile import print_kernels
from bench.report import environment, host_loop, print_facts, print_table, write_json
from bench.steps import LaunchedStep, StepTimes, steady_steps, times_of
from bench.targets import FRAME, bounds, verdict
from omni.checkpoint import Checkpoint
from shapes import SHAPES

_TOKENS = 8
_PROFILED = 16


class Frames(OmniFamily):
    """Requests that the talker alone continues."""

    def __init__(self, setup: Setup, rows: int, frames: int) -> None:
        super().__init__(setup, rows)
        self._count = frames

    def _tokens(self, short: bool) -> int:
        return _TOKENS

    def _frames(self, short: bool) -> int:
        return 40 if short else self._count


@dataclass(frozen=True, slots=True)
class FrameTime:
    """Of `rows` requests at once."""

    rows: int
    times: StepTimes

    @property
    def cells(self) -> tuple[str, ...]:
        times, target = self.times, FRAME.get(self.rows)
        frame = times.step[0] / 1000
        return (
            str(self.rows),
            f"{frame:.3f}",
            f"{times.step[1] / 1000:.3f}",
            f"{times.wall / 1000:.3f}",
            bounds(target),
            verdict(frame, target),
            f"{times.idle[0]:.0f} / {times.idle[1]:.0f}",
            f"{times.starved:.0%}",
            f"{times.sample[0]:.0f} / {times.sample[1]:.0f}",
        )


_HEADER = (
    "rows",
    "frame ms p50",
    "p99",
    "wall",
    "must / aim",
    "verdict",
    "idle us p50 / p99",
    "starved",
    "sample us p50 / p99",
)


def alone(bench: BenchEngine, rows: int, skip: int = 4) -> list[LaunchedStep]:
    """Steps of all rows that were launched after the thinker's last, so far."""
    ended = bench.recorders[THINKER].steps[-1].started
    return steady_steps([step for step in bench.recorders[TALKER].steps if step.started > ended], rows, skip)


def measure(family: Frames, *, profile: bool) -> FrameTime:
    bench = family.engine(family.setup.graphs)
    family.run(bench, "warm", short=True)
    bench.clear()
    family.run(bench, "measured")
    measured = FrameTime(family.rows, times_of(alone(bench, family.rows)))
    print(f"{family.rows} rows: {measured.times.brief}, host {host_loop():.0f} us a loop", flush=True)
    if profile:
        bench.clear()
        family.ask(bench, "profiled")
        recorded = bench.recorders[TALKER].steps
        bench.run(lambda: bool(recorded) and len(alone(bench, family.rows, 0)) >= _PROFILED)
        done = len(recorded)
        print_kernels(lambda: bench.run(lambda: len(recorded) >= done + _PROFILED), _PROFILED)
        bench.run()
    bench.close()
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=positive_int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--frames", type=at_least(64), default=250, help="of each request")
    parser.add_argument("--eager", action="store_true", help="capture no graphs")
    parser.add_argument("--profile", action="store_true", help="print the kernels of a frame")
    parser.add_argument("--device", type=device_here("--tiny --device cpu"), choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, short prompts: to see that it runs")
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    dtype, graphs = ("bfloat16" if cuda else "float32"), cuda and not arguments.eager
    with tempfile.TemporaryDirectory() as folder:
        SHAPES["tiny-omni" if arguments.tiny else "qwen3-omni-30b"](Path(folder))
        setup = Setup(Checkpoint(Path(folder)), open_timed(arguments.device), dtype, graphs, arguments.tiny)
        times = [measure(Frames(setup, rows, arguments.frames), profile=arguments.profile) for rows in arguments.rows]
    weights.forget()
    print_table(_HEADER, [one.cells for one in times])
    facts = environment()
    print_facts(facts)
    write_json(arguments.json, [asdict(one) for one in times], facts)


if __name__ == "__main__":
    main()
