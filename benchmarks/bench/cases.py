"""Steady decode of one stage, its prefill, its routing, and the cost of the hidden states that it emits."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from bench.device import TimedDevice, microseconds
from bench.engine import BenchEngine
from bench.pipelines import READER, ROWS, WRITER, emitting, one_stage
from bench.profile import print_kernels
from bench.steps import Step, Times, percentiles, steady_steps, times_of
from bench.traffic import drawn, random_prompt
from omni.checkpoint import Checkpoint
from omni.pipeline import Pipeline
from omni_ar.layers.moe import observe_routing
from omni_ar.model import ArModel

_BLOCK = 16
_BUDGET = 2048
_WARM_STEPS = 12


@dataclass(slots=True)
class DecodeCase:
    """`rows` requests of one stage, each with its own random prompt of `prompt` ids. model: once an engine has been built."""

    checkpoint: Checkpoint
    pipeline: Pipeline
    stage: str
    rows: int
    prompt: int
    device: TimedDevice
    dtype: str
    graphs: bool
    _model: list[ArModel] = field(default_factory=list)

    @property
    def model(self) -> ArModel:
        return self._model[0]

    def options(self, tokens: int) -> dict[str, object]:
        """Of the stage, for requests that draw so many tokens: room for all of them."""
        longest = -(-(self.prompt + tokens) // _BLOCK) + 1
        return {
            "max_num_seqs": self.rows,
            "max_num_batched_tokens": _BUDGET,
            "block_size": _BLOCK,
            "num_blocks": max(self.rows * longest, 8192 // _BLOCK),
            "graph_batch_sizes": (self.rows,),
            "graph_chunk_sizes": tuple({min(self.prompt, _BUDGET), _BUDGET}),
        }

    def tokens(self, steps: int) -> int:
        """How many each request draws, so that all decode together for `steps` steps: the first wait for the last's prompt."""
        return steps + 2 * (self.rows * self.prompt // _BUDGET + self.rows // 8) + 16

    def engine(self, tokens: int, graphs: bool) -> BenchEngine:
        pipeline = one_stage(self.pipeline, self.stage, **self.options(tokens))
        return self.opened(pipeline, graphs, self.stage)

    def opened(self, pipeline: Pipeline, graphs: bool, stage: str) -> BenchEngine:
        bench = BenchEngine(pipeline, self.checkpoint, self.device, self.dtype, graphs)
        self._model[:] = [bench.runners[stage]._model]
        return bench

    def ask(
        self, bench: BenchEngine, name: str, tokens: int, stage: str, modalities: Sequence[str] = ("text",)
    ) -> None:
        """All requests, at once. name: of the round; its prompts are always the same."""
        generator = np.random.default_rng([len(name), *name.encode()])
        for row in range(self.rows):
            prompt = random_prompt(generator, self.prompt, self.model.shape)
            sampling = {stage: drawn(1000 + row, tokens)}
            bench.submit(f"{name} {row}", {stage: [prompt]}, sampling, modalities)


def measure_decode(case: DecodeCase, steps: int, *, profile: bool = False) -> tuple[Times, tuple[float, float]]:
    """Times of the first `steps` steady steps, and of the engine's ticks that launched them, p50 and p99.

    Requests draw some more, so that the last to start decodes as long: context grows from the prompt by `steps`, and no further.
    """
    tokens = case.tokens(steps)
    bench = case.engine(tokens, case.graphs)
    warm(case, bench)
    case.ask(bench, "measured", tokens, case.stage)
    bench.run()
    steady = steady_steps(bench.recorders[case.stage].steps, case.rows)[:steps]
    times = times_of(steady)
    first, last = steady[0].started, steady[-1].started
    ticks = percentiles([us for start, us in bench.ticks if first <= start <= last])
    if profile:
        profile_steps(case, bench)
    bench.close()
    return times, ticks


def warm(case: DecodeCase, bench: BenchEngine, stage: str | None = None, modalities: Sequence[str] = ("text",)) -> None:
    """A short round, so that kernels are compiled and loaded; nothing of it is kept."""
    case.ask(bench, "warm", case.tokens(_WARM_STEPS), stage or case.stage, modalities)
    bench.run()
    bench.clear()


def profile_steps(case: DecodeCase, bench: BenchEngine, steps: int = 16) -> None:
    """Prints what `steps` steady steps are made of."""
    bench.clear()
    case.ask(bench, "profiled", case.tokens(4 * steps), case.stage)
    recorded = bench.recorders[case.stage].steps
    bench.run(lambda: len(steady_steps(recorded, case.rows, 0)) >= 8)
    done = len(recorded)
    print_kernels(lambda: bench.run(lambda: len(recorded) >= done + steps), steps)
    bench.run()


def count_experts(case: DecodeCase, steps: int) -> float:
    """Distinct experts a layer, mean over layers and steady steps of an uncaptured run over the same weights and prompts."""
    tokens = case.tokens(steps)
    bench = case.engine(tokens, graphs=False)
    recorded = bench.recorders[case.stage].steps
    counts: list[Tensor] = []

    def see(expert_TK: Tensor) -> None:
        step = recorded[-1]
        if step.rows == case.rows == expert_TK.shape[0] and not step.prompt_tokens:
            used_E = torch.zeros(4096, dtype=torch.int64, device=expert_TK.device)
            counts.append(used_E.index_fill_(0, expert_TK.flatten().long(), 1).sum())

    with observe_routing(see):
        case.ask(bench, "measured", tokens, case.stage)
        bench.run()
    bench.close()
    return float(torch.stack(counts).double().mean())


def measure_prefill(case: DecodeCase, length: int, repeats: int) -> float:
    """Microseconds from the launch of a prompt of `length` ids, on an idle device, to its token: the median."""
    single = replace(case, rows=1, prompt=length, _model=[])
    bench = single.engine(2, single.graphs)
    recorded, times = bench.recorders[single.stage].steps, []
    for repeat in range(repeats + 2):
        single.ask(bench, f"prefill {repeat}", 1, single.stage)
        bench.run()
        step = recorded[-1]
        assert step.prompt_tokens == length, "one step must have run the whole prompt"
        times.append(_latency(step))
    bench.close()
    return percentiles(times[2:])[0]


def _latency(step: Step) -> float:
    assert step.token is not None
    return microseconds(step.begin, step.token)


def hidden_ratio(case: DecodeCase, steps: int, rounds: int = 3) -> dict[str, float]:
    """Step time with a hidden state emitted and gathered for every token, over that with none: medians, in turns."""
    tokens = case.tokens(steps)
    options = case.options(tokens)
    silent = case.opened(emitting(case.pipeline, 0, emits=False, **options), case.graphs, WRITER)
    width = case.model.shape.hidden_width
    loud = case.opened(emitting(case.pipeline, width, emits=True, **options), case.graphs, WRITER)
    engines = {False: silent, True: loud}
    asked = {False: ("text",), True: ("text", ROWS)}
    times: dict[bool, list[Times]] = {False: [], True: []}
    for emits, bench in engines.items():
        warm(case, bench, WRITER, asked[emits])
    for turn in range(rounds):
        for emits, bench in engines.items():
            before = bench.engine.counters().get(READER, {}).get("rows", 0)
            case.ask(bench, f"turn {turn}", tokens, WRITER, asked[emits])
            bench.run()
            gathered = bench.engine.counters().get(READER, {}).get("rows", 0) - before
            assert gathered == emits * case.rows * tokens, "every token's hidden state must have been gathered, once"
            times[emits].append(times_of(steady_steps(bench.recorders[WRITER].steps, case.rows)))
            bench.clear()
    for bench in engines.values():
        bench.close()
    medians = {emits: float(np.median([t.step[0] for t in runs])) for emits, runs in times.items()}
    return {
        "rows": case.rows,
        "width": width,
        "none_us": medians[False],
        "gathered_us": medians[True],
        "ratio": medians[True] / medians[False],
        "sample_us": max(t.sample[0] for t in times[True]),
        "idle_us": max(t.idle[0] for t in times[True]),
    }
