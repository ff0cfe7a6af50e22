"""A thinker and a talker on one device: each one's step time alone, and beside the other.

    python benchmarks/colocate.py [--modes alone loop green processes] [--sms 16 32 48] [--eager] [--json FILE]

The released Qwen3-Omni-30B-A3B shape, dummy weights: the thinker decodes 32 rows, the talker 8, code prediction included; prompts
of 512; they do not feed each other, so that neither waits for the other's tokens. StepTimes are of two seconds in which all rows
decode, from the first moment in which they do.

- `alone`: each in an engine of its own, one after the other.
- `loop`: both in one engine, as served: with all streams of one priority, and with the talker's first.
- `green`: the same, and so many multiprocessors are the talker's alone, the others the thinker's (CUDA green contexts).
- `processes`: two processes, each with its engine, without a partition of the device: they take turns on it.

A share is speed beside the other over speed alone; 1.00 + 1.00 would be two devices. p50 and p99 are times between the token events
of consecutive steps.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from bench import weights
from bench.arguments import device_here, output_file, positive_int
from bench.device import TimedDevice, open_timed
from bench.emit import THINKER
from bench.green import GreenCuda, why_not
from bench.pipelines import TALKER
from bench.processes import measure_processes
from bench.report import environment, print_facts, print_table, write_json
from bench.sides import FULL, TINY, Alone, Load, measure
from bench.steps import StepTimes
from omni.checkpoint import Checkpoint
from shapes import SHAPES

MODES = ("alone", "loop", "green", "processes")
_BOTH = (THINKER, TALKER)


@dataclass(frozen=True, slots=True)
class Interference:
    name: str
    times: dict[str, StepTimes]


def outcomes(arguments: argparse.Namespace, folder: Path, load: Load) -> Iterator[Interference]:
    """Mode by mode. Processes are first: they need the memory that this process allocates later."""
    modes, checkpoint = arguments.modes, Checkpoint(folder)

    def run(device: TimedDevice, one: Load, stages: tuple[str, ...]) -> dict[str, StepTimes]:
        return measure(checkpoint, device, one, stages, Alone())

    if "processes" in modes:
        yield Interference("two processes", measure_processes(folder, arguments.device, load))
    if "alone" in modes:
        alone = [run(open_timed(arguments.device), load, (stage,)) for stage in _BOTH]
        yield Interference("alone", alone[0] | alone[1])
    if "loop" in modes:
        yield Interference(
            "one loop, one priority", run(open_timed(arguments.device), replace(load, priority=0), _BOTH)
        )
        yield Interference("one loop, talker first", run(open_timed(arguments.device), load, _BOTH))
    if "green" in modes:
        yield from _green(arguments.sms, load, run)


def _green(
    counts: list[int], load: Load, run: Callable[[TimedDevice, Load, tuple[str, ...]], dict[str, StepTimes]]
) -> Iterator[Interference]:
    reason = why_not()
    if reason is not None:
        print(f"green contexts: left out, {reason}", flush=True)
        return
    for count in counts:
        try:
            device = GreenCuda(TALKER, count)
        except RuntimeError as error:
            print(f"green contexts of {count} multiprocessors: {error}", flush=True)
            continue
        name = f"one loop, {device.reserved} + {device.others} SMs"
        yield Interference(name, run(device, load, _BOTH))


def cells(outcome: Interference, alone: Interference | None) -> tuple[str, ...]:
    row, total = [outcome.name], 0.0
    for stage in _BOTH:
        times = outcome.times[stage]
        share = alone.times[stage].wall / times.wall if alone is not None else 0.0
        total += share
        row += [
            f"{times.step[0] / 1000:.2f}",
            f"{times.step[1] / 1000:.2f}",
            f"{times.wall / 1000:.2f}",
            f"{share:.2f}",
        ]
    return (*row, f"{total:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument(
        "--sms", type=positive_int, nargs="+", default=[16, 32, 48], help="multiprocessors of the talker's own"
    )
    parser.add_argument("--eager", action="store_true", help="capture no graphs")
    parser.add_argument("--device", type=device_here("--tiny --device cpu"), choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, few rows: to see that it runs")
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args()
    load = TINY if arguments.tiny else FULL
    load = replace(load, graphs=load.graphs and not arguments.eager)
    found: list[Interference] = []
    with tempfile.TemporaryDirectory() as folder:
        SHAPES["tiny-omni" if arguments.tiny else "qwen3-omni-30b"](Path(folder))
        for outcome in outcomes(arguments, Path(folder), load):
            found.append(outcome)
            times_text = ", ".join(f"{stage} {times.step[0] / 1000:.2f} ms" for stage, times in outcome.times.items())
            print(f"{outcome.name}: {times_text}", flush=True)
    weights.forget()
    alone = next((outcome for outcome in found if outcome.name == "alone"), None)
    rows = load.rows
    header = [f"thinker x {rows[THINKER]} ms p50", "p99", "mean", "share", f"talker x {rows[TALKER]} ms p50"]
    print_table(("", *header, "p99", "mean", "share", "sum"), [cells(outcome, alone) for outcome in found])
    facts = environment() | {"multiprocessors": _multiprocessors()}
    print_facts(facts)
    write_json(arguments.json, [asdict(outcome) for outcome in found], facts)


def _multiprocessors() -> str:
    return str(torch.cuda.get_device_properties(0).multi_processor_count) if torch.cuda.is_available() else "none"


if __name__ == "__main__":
    main()
