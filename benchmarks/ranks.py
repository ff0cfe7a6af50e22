"""Decode steps of a stage on one device and cut across several, through `Omni` as users run it.

    python benchmarks/ranks.py [--shape qwen3-omni-30b] [--ranks 1 2] [--ways tensor expert pipeline] [--rows 1 8 32] [--prompt 64]

--ways: `tensor` cuts each layer, `expert` too but divides the experts, `pipeline` divides the layers into layer ranges.

Dummy weights. Each of `--rows` requests draws tokens at temperature 1, twice: few tokens, and many. The time of a step is the
difference of the two, over the difference of the tokens; the median of `--rounds`. With a pipeline, a row is in every second step
of two ranks, and the time is that of a row's token. The stage is the thinker of the shape; its other stages are on the first device
and idle. The host time of `sample_tokens` at the first rank is the median of all steps of the rounds, from `Omni.counters()`, whose
groups of durations are 10 microseconds wide up to 200. The time of the prompts is that of the few tokens without their
steps; no prompt is in the prefix cache.

--timeline: a folder for a timeline of each way with several ranks, of a further run with the last of `--rows`. Printed of each
rank: how much of the time between the starts of its decode steps it is busy, and how long it is idle between two steps; the host
time of `sample_tokens`, also without that of recording.

Each row has a prompt of random token ids, unrelated to the others': rows of equal prompts share most of their experts, of which a
step then reads too few. The column of experts has those that a layer would use if rows chose at random, on all ranks together; they
are not counted here (`decode.py` counts them).
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from bench.arguments import device_here, output_file, output_folder, positive_int
from bench.floors import uniform_experts
from bench.report import environment, print_facts, print_table, write_json
from bench.settings import add_settings, overrides_of, refusals_in_one_line
from omni import Omni
from omni.frontend.base import Chat, Prepared, TextPart
from omni.payload import Payload
from omni.sampling import SamplingParams
from omni.timeline.read import read_trace
from omni.timeline.report import make_report
from omni.utils.duration_counts import DurationCounts
from omni_ar.inputs import Prompt
from shapes import SHAPES

STAGES = {"qwen3-omni-30b": "thinker", "qwen2.5-omni-7b": "thinker", "tiny-omni": "thinker"}
FEW, MANY = 64, 320
_salts = map(str, itertools.count())


@dataclass(frozen=True, slots=True)
class RanksRun:
    """milliseconds: of a row's token. experts: of a layer, if rows chose them at random; None for a dense stage. start: seconds.
    sample_tokens_us: median. prompts: milliseconds until all rows have their first token."""

    ranks: int
    way: str
    rows: int
    milliseconds: float
    tokens_per_second: float
    experts: float | None
    start: float
    sample_tokens_us: float
    prompts: float


@dataclass(frozen=True, slots=True)
class TextSizes:
    """Of a stage's text model. experts: 0 for a dense one."""

    vocab: int
    experts: int
    top_k: int

    @classmethod
    def read(cls, folder: str) -> "TextSizes":
        text = json.loads((Path(folder) / "config.json").read_text())["thinker_config"]["text_config"]
        return cls(text["vocab_size"], text.get("num_experts", 0), text.get("num_experts_per_tok", 0))

    def used(self, rows: int) -> float | None:
        return uniform_experts(self.experts, self.top_k, rows) if self.experts else None


def opened(folder: str, arguments: argparse.Namespace, ranks: int, way: str, timeline: Path | None = None) -> Omni:
    stage = STAGES[arguments.shape]
    places = [f"cuda:{rank}" for rank in range(ranks)]
    if arguments.device == "cpu":
        places = ["cpu", *(f"cpu/{rank}" for rank in range(1, ranks))]
    overrides: dict[str, object] = {
        f"{stage}.{'pipeline' if way == 'pipeline' else 'tensor'}_parallel": ranks,
        f"{stage}.expert_parallel": way == "expert" and ranks > 1,
        "engine.process": "process",
    }
    overrides |= overrides_of(arguments.set if ranks > 1 else [])
    return Omni(
        folder,
        load_format="dummy",
        device=places[0],
        place={stage: ",".join(places)},
        overrides=overrides,
        timeline=timeline,
    )


def measure(folder: str, arguments: argparse.Namespace, ranks: int, way: str) -> list[RanksRun]:
    stage, sizes = STAGES[arguments.shape], TextSizes.read(folder)
    since = time.perf_counter()
    with opened(folder, arguments, ranks, way) as omni:
        start = time.perf_counter() - since
        runs: list[RanksRun] = []
        with random_prompts(omni, stage, sizes.vocab, arguments.prompt):
            for rows in arguments.rows:
                generate(omni, stage, rows, FEW)
                times, first, before = list[float](), list[float](), omni.counters()[stage]
                for _ in range(arguments.rounds):
                    few, many = (generate(omni, stage, rows, tokens) for tokens in (FEW, MANY))
                    times.append((many - few) / (MANY - FEW))
                    first.append(few - (FEW - 1) * times[-1])
                step, prompts = statistics.median(times), statistics.median(first) * 1e3
                sampling = DurationCounts.of("sample_tokens", omni.counters()[stage], before).percentile(0.5)
                assert sampling is not None
                experts = sizes.used(rows)
                runs.append(RanksRun(ranks, way, rows, step * 1e3, rows / step, experts, start, sampling, prompts))
                print(
                    f"{named(runs[-1])}, {rows} rows: {step * 1e3:.3f} ms a step, sample_tokens {sampling:.0f} us p50,"
                    f" prompts {prompts:.0f} ms, start {start:.1f} s",
                    flush=True,
                )
        return runs


def named(run: RanksRun) -> str:
    return f"{run.ranks} ranks, {run.way}" if run.ranks > 1 else "1 rank"


def record(folder: str, arguments: argparse.Namespace, ranks: int, way: str) -> None:
    """Writes a timeline, and prints the busy and the idle time of each rank."""
    stage, rows = STAGES[arguments.shape], arguments.rows[-1]
    file = arguments.timeline / f"{way}-{ranks}.json"
    vocab, prompt = TextSizes.read(folder).vocab, arguments.prompt
    with opened(folder, arguments, ranks, way, file) as omni, random_prompts(omni, stage, vocab, prompt):
        generate(omni, stage, rows, FEW)
    report = make_report(read_trace(file))
    for host in report.host:
        if host.stage.startswith(f"{stage} ") and host.name == "sample_tokens" and host.unrecorded is not None:
            print(
                f"{host.stage}, {way}, {rows} rows: sample_tokens {host.took.p50:.1f} us p50,"
                f" {host.unrecorded.p50:.1f} us without recording",
                flush=True,
            )
    for decoding in report.decoding:
        if decoding.stage.startswith(f"{stage} ") and decoding.period is not None:
            assert decoding.idle is not None
            assert decoding.waits is not None
            lost = decoding.idle.total / decoding.period.total + decoding.waits.p50 / decoding.period.p50
            print(
                f"{decoding.stage}, {way}, {rows} rows: busy {1 - lost:.1%} of a step, idle between two steps"
                f" {decoding.idle.p50:.1f} us p50, {decoding.idle.p99:.1f} us p99 ({decoding.period.count} steps)",
                flush=True,
            )


@contextmanager
def random_prompts(omni: Omni, stage: str, vocab: int, length: int) -> Iterator[None]:
    """While entered, the prompt of a chat, whose text is a number, is random ids with this seed. Text would not do: the tokenizers
    of the shapes have a few hundred tokens."""
    frontend = omni._client.frontend
    real = frontend.prepare

    def prepare(chat: Chat) -> Prepared:
        prepared, (part,) = real(chat), chat.messages[-1].content
        assert isinstance(part, TextPart)
        ids = np.random.default_rng(int(part.text)).integers(0, vocab, length, dtype=np.int64)
        (payload,) = prepared.inputs[stage]
        assert isinstance(payload.meta, Prompt)
        axes, columns = payload.meta.positions.shape[0], payload.meta.columns.shape[0]
        positions = np.broadcast_to(np.arange(length), (axes, length)).copy()
        prompt = Prompt(columns=np.tile(ids, (columns, 1)), positions=positions, next_position=length)
        return replace(prepared, inputs={**prepared.inputs, stage: (Payload(prompt),)})

    with patch.object(frontend, "prepare", prepare):
        yield


def generate(omni: Omni, stage: str, rows: int, tokens: int) -> float:
    """The seconds that so many requests take together."""
    sampling = SamplingParams(max_tokens=tokens, temperature=1.0, ignore_eos=True)
    prompts = [str(index) for index in range(rows)]
    since = time.perf_counter()
    results = omni.generate(
        prompts, modalities=("text",), sampling={stage: sampling}, cache_salt=next(_salts), stream=False
    )
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
    parser.add_argument("--prompt", type=positive_int, default=64, help="tokens of each prompt")
    parser.add_argument("--rounds", type=positive_int, default=3)
    parser.add_argument("--ways", choices=("tensor", "expert", "pipeline"), nargs="+", default=["tensor"])
    add_settings(parser, "of several ranks; none as shipped")
    parser.add_argument("--timeline", type=output_folder)
    parser.add_argument(
        "--device", type=device_here("--shape tiny-omni --device cpu"), choices=("cuda", "cpu"), default="cuda"
    )
    parser.add_argument("--json", type=output_file)
    arguments = parser.parse_args()
    ways = [(ranks, way) for ranks in arguments.ranks for way in (arguments.ways if ranks > 1 else ["tensor"])]
    with tempfile.TemporaryDirectory() as folder, refusals_in_one_line():
        SHAPES[arguments.shape](Path(folder))
        runs = [run for ranks, way in ways for run in measure(folder, arguments, ranks, way)]
        for ranks, way in ways if arguments.timeline is not None else ():
            if ranks > 1:
                record(folder, arguments, ranks, way)
    alone = {run.rows: run.milliseconds for run in runs if run.ranks == 1}
    facts = environment() | {"shape": arguments.shape}
    print_facts(facts)
    header = (
        "ranks",
        "rows",
        "token ms",
        "of one device's",
        "tokens/s",
        "experts at random",
        "prompts ms",
        "start s",
        "sample_tokens us",
    )
    rows = [
        (named(r), str(r.rows), f"{r.milliseconds:.3f}",
         f"{r.milliseconds / alone[r.rows]:.2f}" if r.rows in alone else "", f"{r.tokens_per_second:.0f}",
         f"{r.experts:.1f}" if r.experts is not None else "", f"{r.prompts:.0f}", f"{r.start:.1f}",
         f"{r.sample_tokens_us:.0f}")
        for r in runs
    ]  # fmt: skip
    print_table(header, rows)
    if arguments.json is not None:
        write_json(arguments.json, [asdict(run) for run in runs], facts)


if __name__ == "__main__":
    main()
