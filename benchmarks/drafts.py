"""Tokens per second with drafts of a chosen acceptance rate, against plain decoding, by shape and batch.

    python benchmarks/drafts.py [--shapes 8b 30b] [--rows 1 8] [--drafts 3] [--rates 0 0.7] [--models eagle3] [--json FILE]

Weights are random. Every row has its own random prompt of 512 ids and draws 256 tokens with a seed of its own. All ask twice: the
first round is remembered, and in the second, which is measured, the drafter `fabricated` drafts the right token with the given
probability (docs/speculative.md). At rate 0 no draft is accepted. The temperature is the highest, so that a token depends on the
noise of its seed and place, and hardly on logits that a batch of another size rounds differently: at temperature 1 a random model's
texts part after some tokens, and no draft is accepted from there on. `ngram` drafts from such random text, and almost none of its
drafts is accepted: that is the cost of a drafter that does not pay. "text that repeats": embeddings and output matrix are such that
the likeliest id follows the newest one in a cycle of 64, which ends the prompt; everything else of the step is as before, and the
temperature is 0.

--models: drafters with random weights: `draft_model`, the 0.6b shape beside the 8b one, whose model can repeat the text too, and
`eagle3`, a head that is never right.

Measured is the time from the moment at which every row has 4 tokens to that at which the first row has all but a few, after the
device has completed its launches. "experts": distinct ones of a layer in a step, counted in uncaptured steps over the same weights,
prompts and seeds, and behind them those of uniform choices by the positions that verify something. Positions without a draft are
counted: they are all alike, and take the experts of one more token. "floor": the time in which a step's bytes are copied, with
uniform choices.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
import torch

from bench import weights
from bench.arguments import at_least, device_here, output_file, positive_int, probability
from bench.cases import DecodeCase, warm
from bench.device import TimedDevice, open_timed
from bench.drafters import draft_model_folder, eagle3_folder, model_that_drafts
from bench.engine import BenchEngine
from bench.floors import experts_of, step_bytes, uniform_experts
from bench.pipelines import family_pipeline
from bench.report import copy_bandwidth, environment, print_facts, print_table, write_json
from bench.routing import Routing, count_experts, routing_text
from decode import STAGES
from omni.checkpoint import Checkpoint
from omni.payload import Payload
from omni.sampling import SamplingParams
from omni_ar.inputs import Prompt
from omni_ar.model import ArModel
from omni_ar.run.worker import ArWorker
from shapes import SHAPES

_BEGUN = 4
"""Tokens of each row before the measurement."""


_HOTTEST = 100.0
"""The highest temperature."""
_CYCLE = 64
"""Ids of a text that repeats."""
_REPEATS = "text that repeats"
_LARGE = 4.0
"""Standard deviation of embeddings that the layers' outputs hardly change."""


@dataclass(slots=True)
class DraftedCase(DecodeCase):
    """settings: of the stage, for its drafter. repeats: whether the text repeats. counts_experts: whether experts are counted."""

    settings: Mapping[str, object] = field(default_factory=dict)
    repeats: bool = False
    counts_experts: bool = True

    @property
    def positions(self) -> int:
        """Maximum number of a row in one step."""
        return 1 + int(str(self.settings.get("draft_tokens", 0)))

    def options(self, tokens: int) -> dict[str, object]:
        return {**DecodeCase.options(self, tokens), **self.settings}

    def sampling(self, row: int, tokens: int) -> SamplingParams:
        temperature = 0.0 if self.repeats else _HOTTEST
        sampling: SamplingParams = msgspec.structs.replace(
            DecodeCase.sampling(self, row, tokens), temperature=temperature
        )
        return sampling

    def make_prompt(self, generator: np.random.Generator) -> Payload:
        made: Payload = DecodeCase.make_prompt(self, generator)
        if self.repeats:
            assert isinstance(made.meta, Prompt)
            ids = made.meta.columns[0]
            cycle = np.arange(_CYCLE)[-ids.size :]
            ids[ids.size - cycle.size :] = cycle
        return made


@contextmanager
def repeating(model: ArModel) -> Iterator[None]:
    """Makes id (i + 1) % `_CYCLE` the likeliest one behind id i of the cycle, meanwhile."""
    embeddings, outputs = model.get_parameter("embed_tokens.weight"), model.get_parameter("lm_head.weight")
    kept = embeddings.clone(), outputs[:_CYCLE].clone()
    with torch.inference_mode():
        # The layers add little to a residual stream of this size.
        embeddings.normal_(std=_LARGE)
        outputs[:_CYCLE] = embeddings[:_CYCLE].roll(1, 0)
    try:
        yield
    finally:
        with torch.inference_mode():
            embeddings.copy_(kept[0])
            outputs[:_CYCLE] = kept[1]


def text_of(case: DraftedCase, bench: BenchEngine) -> ExitStack:
    """The stage's model, and that of its drafter, write the text of the case meanwhile."""
    stack = ExitStack()
    models = (case.model, model_that_drafts(bench, case.stage)) if case.repeats else ()
    for model in filter(None, models):
        stack.enter_context(repeating(model))
    return stack


@dataclass(frozen=True, slots=True)
class Throughput:
    """per_second: tokens. length: tokens of a row in one step. drafted, accepted: drafts in the measured round. step, floor: ms of
    one step. sample_us: host time of `sample_tokens`, the median. experts: None for a dense model, and if they are not counted."""

    shape: str
    rows: int
    what: str
    per_second: float
    length: float
    drafted: int
    accepted: int
    experts: Routing | None
    floor: float
    sample_us: float

    @property
    def step(self) -> float:
        return 1000 * self.rows * self.length / self.per_second

    def cells(self, plain: float) -> tuple[str, ...]:
        of_drafts = f"{self.accepted} of {self.drafted}" if self.drafted else ""
        speed = f"{self.per_second:.0f}", f"{self.per_second / plain:.3f}"
        step = f"{self.step:.3f}", f"{self.floor:.3f}", f"{self.sample_us:.0f}", routing_text(self.experts)
        return f"{self.shape}, {self.rows} rows", self.what, *speed, f"{self.length:.2f}", of_drafts, *step


class Round:
    """The measured round of a case, from the moment at which every row has `_BEGUN` tokens, on an engine that has been warmed."""

    def __init__(self, case: DraftedCase, bench: BenchEngine, tokens: int) -> None:
        self._case, self._bench, self._tokens = case, bench, tokens
        warm(case, bench)
        if case.settings:
            case.ask(bench, "measured", tokens, case.stage)
            bench.run()
        worker = bench.engine._workers[case.stage]
        assert isinstance(worker, ArWorker)
        self.worker = worker

    @property
    def outputs(self) -> list[int]:
        """Number of tokens of each row."""
        return [len(request.outputs) for request in self.worker.requests.values()]

    def begin(self) -> None:
        rows = self._case.rows
        self._case.ask(self._bench, "measured", self._tokens, self._case.stage)
        self._bench.run(lambda: len(self.worker.requests) == rows and min(self.outputs) >= _BEGUN)

    def go_on(self) -> None:
        """Until the first row has all tokens but a few: other rows have ended in the steps of its last ones."""
        last = self._tokens - 2 * self._case.positions
        self._bench.run(lambda: max(self.outputs) >= last)


def measure(shape: str, what: str, case: DraftedCase, tokens: int, bandwidth: float) -> Throughput:
    bench = case.engine(tokens, case.graphs)
    with text_of(case, bench):
        measured = _measured(shape, what, case, bench, tokens, bandwidth)
    if measured.experts is None:
        return measured
    bench = case.engine(tokens, graphs=False)
    with text_of(case, bench):
        return replace(measured, experts=measured.experts._replace(counted=_experts(case, bench, tokens)))


def _experts(case: DraftedCase, bench: BenchEngine, tokens: int) -> float:
    """Distinct experts of a layer in one step. bench: without graphs; it is closed."""
    one = Round(case, bench, tokens)
    one.begin()
    found = count_experts(bench, case.rows, one.go_on, case.positions)[case.stage]
    bench.run()
    bench.close()
    return found.counted


def _measured(
    shape: str, what: str, case: DraftedCase, bench: BenchEngine, tokens: int, bandwidth: float
) -> Throughput:
    """Its experts are not counted."""
    one = Round(case, bench, tokens)
    worker, before = one.worker, one.worker.counters()
    one.begin()
    bench.clear()
    begun, at_first, since = sum(one.outputs), worker.counters(), time.perf_counter()
    one.go_on()
    seconds, made = time.perf_counter() - since, sum(one.outputs) - begun
    sample_us = statistics.median(step.sample_us for step in bench.recorders[case.stage].steps)
    at_last = worker.counters()
    steps, verified = (at_last.get(name, 0) - at_first.get(name, 0) for name in ("steps", "drafted_tokens"))
    bench.run()
    after = worker.counters()
    bench.close()
    drafted, accepted = (after.get(name, 0) - before.get(name, 0) for name in ("drafted_tokens", "accepted_drafts"))
    model, positions = case.model, 1 + verified / (steps * case.rows)
    sizes = experts_of(model)
    experts = Routing(0.0, uniform_experts(*sizes, case.rows * positions)) if sizes[0] and case.counts_experts else None
    floor = 1000 * step_bytes(model, case.rows, case.prompt + tokens // 2, positions) / bandwidth
    length = made / (steps * case.rows)
    return Throughput(shape, case.rows, what, made / seconds, length, drafted, accepted, experts, floor, sample_us)


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
    bandwidth: float
    count_experts: bool
    ngram: bool
    models: list[str]
    found: list[Throughput] = field(default_factory=list)

    def variants(self, models: Mapping[str, Path]) -> dict[str, dict[str, object]]:
        """Settings of the stage by name. models: folders of drafters with weights."""
        fabricated = {"drafter": "fabricated", "draft_tokens": self.drafts}
        made: dict[str, dict[str, object]] = {"plain": {}}
        for rate in self.rates:
            made[f"fabricated, {rate:g}"] = {**fabricated, "drafter_args": {"rate": rate}}
            made[f"fabricated, {rate:g}, always {self.drafts}"] = {
                **made[f"fabricated, {rate:g}"],
                "adaptive_drafts": False,
            }
        if self.ngram:
            made["ngram, random text"] = made[f"ngram, {_REPEATS}"] = {"drafter": "ngram", "draft_tokens": self.drafts}
        for name, path in models.items():
            settings = {"drafter": name, "draft_tokens": self.drafts, "drafter_args": {"model": str(path)}}
            for text in ("random text", _REPEATS) if name == "draft_model" else ("random text",):
                made[f"{name}, {text}"] = settings
                made[f"{name}, always {self.drafts}, {text}"] = {**settings, "adaptive_drafts": False}
        return made

    def model_folders(self, shape: str, checkpoint: Checkpoint, folder: Path) -> dict[str, Path]:
        """Of the drafters of `models` that there are for the shape."""
        made: dict[str, Path] = {}
        if "eagle3" in self.models:
            made["eagle3"] = eagle3_folder(checkpoint, folder)
        if "draft_model" in self.models and (path := draft_model_folder(shape, checkpoint, folder)) is not None:
            made["draft_model"] = path
        return made

    def shape(self, name: str) -> None:
        shape = STAGES[name]
        with tempfile.TemporaryDirectory() as folder:
            SHAPES[shape.name](Path(folder))
            checkpoint = Checkpoint(Path(folder))
            pipeline = family_pipeline(checkpoint)
            models = self.model_folders(shape.name, checkpoint, Path(folder))
            for rows in self.rows:
                for what, settings in self.variants(models).items():
                    given = (checkpoint, pipeline, shape.stage, rows, self.prompt, self.device, self.dtype, self.graphs)
                    case = DraftedCase(
                        *given,
                        settings=settings,
                        repeats=what.endswith(_REPEATS),
                        counts_experts=self.count_experts,
                    )
                    result = measure(name, what, case, self.tokens, self.bandwidth)
                    self.found.append(result)
                    print(f"{name}, {rows} rows, {what}: {result.per_second:.0f} tokens/s", flush=True)
        weights.forget()
        if self.device.torch_device.type == "cuda":
            torch.cuda.empty_cache()

    def print(self) -> None:
        plain = {(each.shape, each.rows): each.per_second for each in self.found if each.what == "plain"}
        counts = ("tokens per step", "accepted", "ms a step", "floor", "sample_tokens us", "experts (uniform)")
        header = ("", "drafts", "tokens/s", "times plain", *counts)
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
    parser.add_argument("--no-experts", action="store_true", help="count none, which takes as long as the rest")
    parser.add_argument("--no-ngram", action="store_true", help="leave out the drafter ngram")
    parser.add_argument(
        "--models", nargs="+", choices=("draft_model", "eagle3"), default=[], help="drafters with weights"
    )
    parser.add_argument("--eager", action="store_true", help="capture no graphs")
    parser.add_argument("--device", type=device_here("--tiny --device cpu"), choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, short prompts: to see that it runs")
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.shapes, arguments.prompt, arguments.tokens = ["tiny-text", "tiny-omni"], 8, 48
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
        copy_bandwidth() if cuda else 1e10,
        not arguments.no_experts,
        not arguments.no_ngram,
        arguments.models,
    )
    for name in arguments.shapes:
        run.shape(name)
    run.print()
    facts = environment()
    print_facts(facts)
    write_json(arguments.json, [asdict(each) for each in run.found], facts)


if __name__ == "__main__":
    main()
