"""Tokens per second with drafts of a chosen acceptance rate, against plain decoding, by shape and batch.

    python benchmarks/drafts.py [--shapes 8b 30b] [--rows 1 8] [--drafts 3] [--rates 0 0.7] [--json FILE]

Weights are random. Every row has its own random prompt of 512 ids and draws 256 tokens at temperature 1, each with a seed of its
own. All ask twice: the first round is remembered, and in the second, which is measured, the drafter `fabricated` knows each token
with the given probability (docs/speculative.md). At rate 0 no draft is ever accepted. `ngram` drafts from random text, so it hardly
ever accepts one either: that is the cost of a drafter that does not pay. Measured is the time from the moment at which every row
has 4 tokens to that at which the first row has all but a few, after the device has done what was launched.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from bench import weights
from bench.arguments import at_least, device_here, output_file, positive_int, probability
from bench.cases import DecodeCase, warm
from bench.device import TimedDevice, open_timed
from bench.pipelines import family_pipeline
from bench.report import environment, print_facts, print_table, write_json
from decode import STAGES
from omni.checkpoint import Checkpoint
from omni_ar.run.worker import ArWorker
from shapes import SHAPES

_BEGUN = 4
"""Tokens of each row before the measurement."""


@dataclass(slots=True)
class DraftedCase(DecodeCase):
    """settings: of the stage, for its drafter."""

    settings: Mapping[str, object] = field(default_factory=dict)

    def options(self, tokens: int) -> dict[str, object]:
        return {**DecodeCase.options(self, tokens), **self.settings}


@dataclass(frozen=True, slots=True)
class Throughput:
    """per_second: tokens. length: tokens of a row in one step. drafted, accepted: drafts in the measured round."""

    shape: str
    rows: int
    what: str
    per_second: float
    length: float
    drafted: int
    accepted: int

    def cells(self, plain: float) -> tuple[str, ...]:
        of_drafts = f"{self.accepted} of {self.drafted}" if self.drafted else ""
        speed = f"{self.per_second:.0f}", f"{self.per_second / plain:.3f}"
        return f"{self.shape}, {self.rows} rows", self.what, *speed, f"{self.length:.2f}", of_drafts


def measure(shape: str, what: str, case: DraftedCase, tokens: int) -> Throughput:
    bench = case.engine(tokens, case.graphs)
    warm(case, bench)
    if case.settings:
        case.ask(bench, "measured", tokens, case.stage)
        bench.run()
    worker = bench.engine._workers[case.stage]
    assert isinstance(worker, ArWorker)
    requests, before = worker.requests, worker.counters()
    # The last tokens of a row come in steps in which others have ended.
    last = tokens - 2 * (1 + int(str(case.settings.get("draft_tokens", 0))))

    def outputs() -> list[int]:
        return [len(request.outputs) for request in requests.values()]

    case.ask(bench, "measured", tokens, case.stage)
    bench.run(lambda: len(requests) == case.rows and min(outputs()) >= _BEGUN)
    begun, steps, since = sum(outputs()), worker.counters()["steps"], time.perf_counter()
    bench.run(lambda: max(outputs()) >= last)
    seconds, made = time.perf_counter() - since, sum(outputs()) - begun
    steps = worker.counters()["steps"] - steps
    bench.run()
    after = worker.counters()
    bench.close()
    drafted, accepted = (after.get(name, 0) - before.get(name, 0) for name in ("drafted_tokens", "accepted_drafts"))
    return Throughput(shape, case.rows, what, made / seconds, made / (steps * case.rows), drafted, accepted)


@dataclass(slots=True)
class DraftsRun:
    """The arguments of a run, and its results."""

    device: TimedDevice
    dtype: str
    graphs: bool
    rows: list[int]
    prompt: int
    tokens: int
    drafts: int
    rates: list[float]
    found: list[Throughput] = field(default_factory=list)

    def variants(self) -> dict[str, dict[str, object]]:
        told = {"drafter": "fabricated", "draft_tokens": self.drafts}
        made: dict[str, dict[str, object]] = {"plain": {}}
        for rate in self.rates:
            made[f"fabricated, {rate:g}"] = {**told, "drafter_args": {"rate": rate}}
            made[f"fabricated, {rate:g}, always {self.drafts}"] = {
                **made[f"fabricated, {rate:g}"],
                "adaptive_drafts": False,
            }
        made["ngram, random text"] = {"drafter": "ngram", "draft_tokens": self.drafts}
        return made

    def shape(self, name: str) -> None:
        shape = STAGES[name]
        with tempfile.TemporaryDirectory() as folder:
            SHAPES[shape.name](Path(folder))
            checkpoint = Checkpoint(Path(folder))
            pipeline = family_pipeline(checkpoint)
            for rows in self.rows:
                for what, settings in self.variants().items():
                    given = (checkpoint, pipeline, shape.stage, rows, self.prompt, self.device, self.dtype, self.graphs)
                    result = measure(name, what, DraftedCase(*given, settings=settings), self.tokens)
                    self.found.append(result)
                    print(f"{name}, {rows} rows, {what}: {result.per_second:.0f} tokens/s", flush=True)
        weights.forget()
        if self.device.torch_device.type == "cuda":
            torch.cuda.empty_cache()

    def print(self) -> None:
        plain = {(each.shape, each.rows): each.per_second for each in self.found if each.what == "plain"}
        header = ("", "drafts", "tokens/s", "times plain", "tokens per step", "accepted")
        print()
        print_table(header, [each.cells(plain[each.shape, each.rows]) for each in self.found])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", nargs="+", choices=STAGES, default=["8b", "30b"])
    parser.add_argument("--rows", type=positive_int, nargs="+", default=[1, 8])
    parser.add_argument("--drafts", type=positive_int, default=3, help="maximum drafts of a row in one step")
    parser.add_argument(
        "--rates", type=probability, nargs="+", default=[0.0, 0.7], help="probabilities that a draft is right"
    )
    parser.add_argument("--prompt", type=positive_int, default=512)
    parser.add_argument("--tokens", type=at_least(32), default=256)
    parser.add_argument("--eager", action="store_true", help="capture no graphs")
    parser.add_argument("--device", type=device_here("--tiny --device cpu"), choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny shape, short prompts: to see that it runs")
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.shapes, arguments.prompt, arguments.tokens = ["tiny-text"], 8, 48
    cuda = arguments.device == "cuda"
    run = DraftsRun(
        open_timed(arguments.device),
        "bfloat16" if cuda else "float32",
        cuda and not arguments.eager,
        arguments.rows,
        arguments.prompt,
        arguments.tokens,
        arguments.drafts,
        arguments.rates,
    )
    for name in arguments.shapes:
        run.shape(name)
    run.print()
    facts = environment()
    print_facts(facts)
    write_json(arguments.json, [asdict(each) for each in run.found], facts)


if __name__ == "__main__":
    main()
