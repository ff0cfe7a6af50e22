"""Decode steps of a stage on one device and cut across several, through `Omni` as its users have it.

    python benchmarks/tensor_parallel.py [--shape qwen3-omni-30b] [--ranks 1 2] [--rows 1 8 32] [--json FILE]

Dummy weights. Each of `--rows` requests draws tokens at temperature 1, with a seed of its own, twice: few tokens, and many. The
time of a step is the difference of the two, over the difference of the tokens; the median of `--rounds`. The stage is the thinker
of the shape; its other stages are on the first device and idle.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.arguments import device_here, output_file, positive_int
from bench.report import environment, print_facts, print_table, write_json
from omni import Omni
from omni.sampling import SamplingParams
from shapes import SHAPES

STAGES = {"qwen3-omni-30b": "thinker", "qwen2.5-omni-7b": "thinker", "tiny-omni": "thinker"}
FEW, MANY = 64, 320


@dataclass(frozen=True, slots=True)
class RanksRun:
    """milliseconds: of a step. start: seconds."""

    ranks: int
    rows: int
    milliseconds: float
    tokens_per_second: float
    start: float


def measure(folder: str, arguments: argparse.Namespace, ranks: int) -> list[RanksRun]:
    stage = STAGES[arguments.shape]
    places = [f"cuda:{rank}" for rank in range(ranks)]
    if arguments.device == "cpu":
        places = ["cpu", *(f"cpu/{rank}" for rank in range(1, ranks))]
    overrides = {f"{stage}.tensor_parallel": ranks, "engine.process": "process"}
    since = time.perf_counter()
    with Omni(
        folder,
        load_format="dummy",
        device=places[0],
        place={stage: ",".join(places)},
        overrides=overrides,
    ) as omni:
        start = time.perf_counter() - since
        runs: list[RanksRun] = []
        for rows in arguments.rows:
            generate(omni, stage, rows, FEW)
            times = []
            for _ in range(arguments.rounds):
                few, many = (generate(omni, stage, rows, tokens) for tokens in (FEW, MANY))
                times.append((many - few) / (MANY - FEW))
            step = statistics.median(times)
            runs.append(RanksRun(ranks, rows, step * 1e3, rows / step, start))
            print(f"{ranks} ranks, {rows} rows: {step * 1e3:.3f} ms a step, start {start:.1f} s", flush=True)
        return runs


def generate(omni: Omni, stage: str, rows: int, tokens: int) -> float:
    """The seconds that so many requests take together."""
    sampling = SamplingParams(max_tokens=tokens, temperature=1.0, ignore_eos=True)
    prompts = [f"Tell me about the number {1000 + index}, and be brief." for index in range(rows)]
    since = time.perf_counter()
    results = omni.generate(prompts, modalities=("text",), sampling={stage: sampling}, stream=False)
    took = time.perf_counter() - since
    assert isinstance(results, list)
    for result in results:
        if result.error is not None:
            raise result.error
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=STAGES, default="qwen3-omni-30b")
    parser.add_argument("--ranks", type=positive_int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=positive_int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=positive_int, default=3)
    parser.add_argument(
        "--device", type=device_here("--shape tiny-omni --device cpu"), choices=("cuda", "cpu"), default="cuda"
    )
    parser.add_argument("--json", type=output_file)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        SHAPES[arguments.shape](Path(folder))
        runs = [run for ranks in arguments.ranks for run in measure(folder, arguments, ranks)]
    alone = {run.rows: run.milliseconds for run in runs if run.ranks == 1}
    facts = environment() | {"shape": arguments.shape}
    print_facts(facts)
    header = ("ranks", "rows", "step ms", "of one device's", "tokens/s", "start s")
    rows = [
        (str(r.ranks), str(r.rows), f"{r.milliseconds:.3f}",
         f"{r.milliseconds / alone[r.rows]:.2f}" if r.rows in alone else "", f"{r.tokens_per_second:.0f}", f"{r.start:.1f}")
        for r in runs
    ]  # fmt: skip
    print_table(header, rows)
    if arguments.json is not None:
        write_json(arguments.json, [asdict(run) for run in runs], facts)


if __name__ == "__main__":
    main()
