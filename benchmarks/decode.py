"""Decode step time by shape and batch, prefill, and the cost of a hidden state for every token.

    python benchmarks/decode.py [--shapes 0.6b 8b 30b] [--rows 1 8 32 64] [--eager] [--profile] [--json FILE]

Weights are random. Every row has its own random prompt of 512 ids and draws 256 tokens and more at temperature 1, each with a seed
of its own; measured are the steps in which all rows decode. A step's time is that between the token points of two
steps in a row, on the device's clock; `wall` is the mean time between launches over the same steps. `idle` is the device's time
between the end of a step and the beginning of the next: where it had run out of work, the host's launch of the next counts in full;
gaps between the graphs and kernels of a step are in the step's time, and `--profile` reports them as waiting.

Experts are counted in uncaptured steps over the same weights, prompts and seeds. If they are more than 5% from what uniform
choices would give, the time is not that of real traffic, and the row is VOID; so is the hidden-state row.

Prefill is one prompt of 2,048 ids, from its launch on an idle device to its token. The hidden-state row is the 30B shape at 32
rows: one 2,048-wide hidden state stored for every token and gathered on the device by a consumer stage, against none, in turns.

`--profile` also prints the kernels of the steps, and the time that each adds. `bench/targets.py` has the origin of `must` and
`aim`.
"""

import argparse
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from bench import targets, weights
from bench.arguments import at_least, device_here, output_file, positive_int
from bench.cases import DecodeCase, HiddenRatio, decode_routing, hidden_ratio, measure_decode, measure_prefill
from bench.device import TimedDevice, open_timed
from bench.floors import experts_of, step_bytes
from bench.pipelines import family_pipeline
from bench.report import copy_bandwidth, environment, host_loop, print_facts, print_table, write_json
from bench.routing import Routing, is_void, routing_text
from bench.steps import StepTimes
from bench.targets import Goal, bounds, verdict
from omni.checkpoint import Checkpoint
from omni.errors import InputError
from shapes import SHAPES


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """name: of `SHAPES`. stage: that is measured, alone."""

    name: str
    stage: str


STAGES = {
    "0.6b": DecodeShape("qwen3-0.6b", "text"),
    "8b": DecodeShape("qwen3-8b", "text"),
    "30b": DecodeShape("qwen3-omni-30b", "thinker"),
    "tiny-text": DecodeShape("tiny-text", "text"),
    "tiny-omni": DecodeShape("tiny-omni", "thinker"),
}


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """floor: ms. experts: None for a dense model."""

    shape: str
    rows: int
    times: StepTimes
    tick: tuple[float, float]
    floor: float
    experts: Routing | None

    @property
    def cells(self) -> tuple[str, ...]:
        times, target = self.times, targets.DECODE.get(self.shape, {}).get(self.rows)
        step = times.step[0] / 1000
        return (
            f"{self.shape} decode, {self.rows} rows",
            f"{step:.3f}",
            f"{times.step[1] / 1000:.3f}",
            f"{times.wall / 1000:.3f}",
            f"{self.floor:.3f}",
            bounds(target),
            judged(step, target, self.experts),
            f"{times.idle[0]:.0f} / {times.idle[1]:.0f}",
            f"{times.starved:.0%}",
            f"{times.sample[0]:.0f} / {times.sample[1]:.0f}",
            f"{self.tick[0]:.0f} / {self.tick[1]:.0f}",
            routing_text(self.experts),
        )


def judged(value: float, target: Goal | None, experts: Routing | None = None) -> str:
    """The verdict, unless rows chose their experts as no real traffic does."""
    return "VOID" if is_void(experts) else verdict(value, target)


_HEADER = (
    "ms",
    "step p50",
    "p99",
    "wall",
    "floor",
    "must / aim",
    "verdict",
    "idle us p50 / p99",
    "starved",
    "sample us p50 / p99",
    "tick us p50 / p99",
    "experts (uniform)",
)


@dataclass(slots=True)
class DecodeRun:
    """The arguments of a run, and its results. steps: to measure in each case."""

    device: TimedDevice
    dtype: str
    graphs: bool
    rows: list[int]
    prompt: int
    steps: int
    prefill: int
    profile: bool
    bandwidth: float
    decodes: list[DecodeTime]
    prefills: dict[str, float]
    hidden: HiddenRatio | None = None

    def shape(self, name: str) -> None:
        """Measures all cases of one shape."""
        shape = STAGES[name]
        with tempfile.TemporaryDirectory() as folder:
            SHAPES[shape.name](Path(folder))
            checkpoint = Checkpoint(Path(folder))
            for rows in self.rows:
                self._rows(name, shape, checkpoint, rows)
            if shape.stage == "thinker":
                case = self._case(checkpoint, shape.stage, 32 if 32 in self.rows else max(self.rows))
                self.hidden = hidden_ratio(case, self.steps)
        weights.forget()
        if self.device.torch_device.type == "cuda":
            torch.cuda.empty_cache()

    def _case(self, checkpoint: Checkpoint, stage: str, rows: int) -> DecodeCase:
        return DecodeCase(
            checkpoint, family_pipeline(checkpoint), stage, rows, self.prompt, self.device, self.dtype, self.graphs
        )

    def _rows(self, name: str, shape: DecodeShape, checkpoint: Checkpoint, rows: int) -> None:
        case = self._case(checkpoint, shape.stage, rows)
        times, tick = measure_decode(case, self.steps, profile=self.profile)
        model = case.model
        experts = decode_routing(case) if experts_of(model)[0] else None
        # In the middle of the steps that are measured.
        floor = step_bytes(model, rows, self.prompt + self.steps // 2) / self.bandwidth * 1000
        self.decodes.append(DecodeTime(name, rows, times, tick, floor, experts))
        print(f"{name}, {rows} rows: {times.brief}, host {host_loop():.0f} us a loop", flush=True)
        if rows == max(self.rows):
            self.prefills[name] = measure_prefill(case, self.prefill, repeats=10)

    def print(self) -> None:
        print()
        print_table(_HEADER, [measured.cells for measured in self.decodes])
        hidden, rows = self.hidden, []

        def add(what: str, value: float, target: Goal | None, experts: Routing | None = None) -> None:
            rows.append((what, f"{value:.3f}", bounds(target), judged(value, target, experts), routing_text(experts)))

        for name, time in self.prefills.items():
            add(f"{name}: prefill of {self.prefill:,}, ms", time / 1000, targets.PREFILL.get(name))
        samples = [m.times.sample[0] for m in self.decodes]
        if hidden is not None:
            what = f"hidden states gathered / none, {hidden.rows} rows"
            add(what, hidden.ratio, targets.HIDDEN, hidden.experts)
            samples.append(hidden.sample_us)
        idle = max(m.times.idle[0] for m in self.decodes)
        add("idle p50, the longest of all cases, ms", idle / 1000, targets.IDLE)
        add("sample_tokens p50, the longest of all cases, ms", max(samples) / 1000, targets.SAMPLE)
        print_table(("", "measured", "must / aim", "verdict", "experts (uniform)"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", nargs="+", choices=STAGES, default=["0.6b", "30b"])
    parser.add_argument("--rows", type=positive_int, nargs="+")
    parser.add_argument("--steps", type=at_least(3), default=256)
    parser.add_argument("--prompt", type=positive_int, default=512)
    parser.add_argument("--prefill", type=positive_int, default=2048)
    parser.add_argument("--eager", action="store_true", help="capture no graphs")
    parser.add_argument("--profile", action="store_true", help="print the kernels of a step")
    parser.add_argument("--device", type=device_here("--tiny --device cpu"), choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, short prompts: to see that it runs")
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args()
    if arguments.tiny:
        for name in ("shapes", "steps", "prompt", "prefill"):
            if getattr(arguments, name) != parser.get_default(name):
                parser.error(f"argument --{name}: --tiny has its own")
        arguments.shapes, arguments.rows = ["tiny-text", "tiny-omni"], arguments.rows or [1, 2]
        arguments.steps, arguments.prompt, arguments.prefill = 16, 8, 24
    cuda = arguments.device == "cuda"
    bandwidth = copy_bandwidth() if cuda else 1e10
    facts = environment() | {"copy bandwidth": f"{bandwidth / 1e12:.2f} TB/s" if cuda else "10 GB/s (assumed)"}
    run = DecodeRun(
        open_timed(arguments.device),
        "bfloat16" if cuda else "float32",
        cuda and not arguments.eager,
        arguments.rows or [1, 8, 32, 64],
        arguments.prompt,
        arguments.steps,
        arguments.prefill,
        arguments.profile,
        bandwidth,
        [],
        {},
    )
    try:
        for name in arguments.shapes:
            run.shape(name)
    except InputError as error:
        raise SystemExit(f"a shape does not take what is asked of it: {error}") from None
    run.print()
    print_facts(facts)
    numbers = {
        "decode": [asdict(m) for m in run.decodes],
        "prefill_us": run.prefills,
        "hidden": asdict(run.hidden) if run.hidden is not None else None,
    }
    write_json(arguments.json, numbers, facts)


if __name__ == "__main__":
    main()
