"""Decode steps of a stage on one device and cut across several, through `Omni` as its users have it.

    python benchmarks/tensor_parallel.py [--shape qwen3-omni-30b] [--ranks 1 2] [--rows 1 8 32] [--expert-parallel] [--json FILE]

Dummy weights. Each of `--rows` requests draws tokens at temperature 1, twice: few tokens, and many. The time of a step is the
difference of the two, over the difference of the tokens; the median of `--rounds`. The stage is the thinker of the shape; its other
stages are on the first device and idle. With `--expert-parallel`, every number of ranks above 1 is measured a second time, with
experts that are divided among the ranks.

Each row has a prompt of random token ids, unrelated to the others': rows of equal prompts share most of their experts, of which a
step then reads too few. The column of experts has those that a layer would use if rows chose at random, on all ranks together; they
are not counted here (`decode.py` counts them).
"""

import argparse
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

from bench.arguments import device_here, output_file, positive_int
from bench.floors import uniform_experts
from bench.report import environment, print_facts, print_table, write_json
from omni import Omni
from omni.frontend.base import Chat, Prepared, TextPart
from omni.payload import Payload
from omni.sampling import SamplingParams
from omni_ar.inputs import Prompt
from shapes import SHAPES

STAGES = {"qwen3-omni-30b": "thinker", "qwen2.5-omni-7b": "thinker", "tiny-omni": "thinker"}
FEW, MANY = 64, 320
PROMPT = 64


@dataclass(frozen=True, slots=True)
class RanksRun:
    """milliseconds: of a step. experts: of a layer, if rows chose them at random; None for a dense stage. start: seconds."""

    ranks: int
    expert_parallel: bool
    rows: int
    milliseconds: float
    tokens_per_second: float
    experts: float | None
    start: float


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


def measure(folder: str, arguments: argparse.Namespace, ranks: int, expert_parallel: bool) -> list[RanksRun]:
    stage, sizes = STAGES[arguments.shape], TextSizes.read(folder)
    places = [f"cuda:{rank}" for rank in range(ranks)]
    if arguments.device == "cpu":
        places = ["cpu", *(f"cpu/{rank}" for rank in range(1, ranks))]
    overrides = {
        f"{stage}.tensor_parallel": ranks,
        f"{stage}.expert_parallel": expert_parallel,
        "engine.process": "process",
    }
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
        with random_prompts(omni, stage, sizes.vocab):
            for rows in arguments.rows:
                generate(omni, stage, rows, FEW)
                times = []
                for _ in range(arguments.rounds):
                    few, many = (generate(omni, stage, rows, tokens) for tokens in (FEW, MANY))
                    times.append((many - few) / (MANY - FEW))
                step = statistics.median(times)
                runs.append(RanksRun(ranks, expert_parallel, rows, step * 1e3, rows / step, sizes.used(rows), start))
                print(f"{named(runs[-1])}, {rows} rows: {step * 1e3:.3f} ms a step, start {start:.1f} s", flush=True)
        return runs


def named(run: RanksRun) -> str:
    return f"{run.ranks} ranks" + (", experts divided" if run.expert_parallel else "")


@contextmanager
def random_prompts(omni: Omni, stage: str, vocab: int) -> Iterator[None]:
    """While entered, the prompt of a chat, whose text is a number, is random ids with this seed. Text would not do: the tokenizers
    of the shapes have a few hundred tokens."""
    frontend = omni._client.frontend
    real = frontend.prepare

    def prepare(chat: Chat) -> Prepared:
        prepared, (part,) = real(chat), chat.messages[-1].content
        assert isinstance(part, TextPart)
        ids = np.random.default_rng(int(part.text)).integers(0, vocab, PROMPT, dtype=np.int64)
        (payload,) = prepared.inputs[stage]
        assert isinstance(payload.meta, Prompt)
        axes, columns = payload.meta.positions.shape[0], payload.meta.columns.shape[0]
        positions = np.broadcast_to(np.arange(PROMPT), (axes, PROMPT)).copy()
        prompt = Prompt(columns=np.tile(ids, (columns, 1)), positions=positions, next_position=PROMPT)
        return replace(prepared, inputs={**prepared.inputs, stage: (Payload(prompt),)})

    with patch.object(frontend, "prepare", prepare):
        yield


def generate(omni: Omni, stage: str, rows: int, tokens: int) -> float:
    """The seconds that so many requests take together."""
    sampling = SamplingParams(max_tokens=tokens, temperature=1.0, ignore_eos=True)
    prompts = [str(index) for index in range(rows)]
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
    parser.add_argument("--expert-parallel", action="store_true", help="measure divided experts too")
    parser.add_argument(
        "--device", type=device_here("--shape tiny-omni --device cpu"), choices=("cuda", "cpu"), default="cuda"
    )
    parser.add_argument("--json", type=output_file)
    arguments = parser.parse_args()
    ways = [(ranks, False) for ranks in arguments.ranks]
    if arguments.expert_parallel:
        ways += [(ranks, True) for ranks in arguments.ranks if ranks > 1]
    with tempfile.TemporaryDirectory() as folder:
        SHAPES[arguments.shape](Path(folder))
        runs = [run for ranks, divided in ways for run in measure(folder, arguments, ranks, divided)]
    alone = {run.rows: run.milliseconds for run in runs if run.ranks == 1}
    facts = environment() | {"shape": arguments.shape}
    print_facts(facts)
    header = ("ranks", "rows", "step ms", "of one device's", "tokens/s", "experts at random", "start s")
    rows = [
        (named(r), str(r.rows), f"{r.milliseconds:.3f}",
         f"{r.milliseconds / alone[r.rows]:.2f}" if r.rows in alone else "", f"{r.tokens_per_second:.0f}",
         f"{r.experts:.1f}" if r.experts is not None else "", f"{r.start:.1f}")
        for r in runs
    ]  # fmt: skip
    print_table(header, rows)
    if arguments.json is not None:
        write_json(arguments.json, [asdict(run) for run in runs], facts)


if __name__ == "__main__":
    main()
