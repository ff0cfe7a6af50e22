"""Steady decode of one stage, its prefill, its routing, and the cost of the hidden states that it emits."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bench.device import TimedDevice, microseconds
from bench.engine import BenchEngine
from bench.pipelines import READER, ROWS, WRITER, emitting, one_stage
from bench.profile import print_kernels
from bench.routing import Routing, count_experts
from bench.steps import LaunchedStep, StepTimes, percentiles, steady_steps, times_of
from bench.traffic import drawn, random_prompt
from omni.checkpoint import Checkpoint
from omni.payload import Payload
from omni.pipeline import Pipeline
from omni.sampling import SamplingParams
from omni_ar.model import ArModel

_BLOCK = 16
_BUDGET = 2048
_WARM_STEPS = 12
_COUNTED_STEPS = 6


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
        """Options of the stage for requests that draw `tokens` tokens each."""
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
        """Tokens that each request draws, so that all decode together for `steps` steps: the first wait for the last's prompt."""
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
        """Submits all requests at once. name: of the round; its prompts are always the same."""
        generator = np.random.default_rng([len(name), *name.encode()])
        for row in range(self.rows):
            prompt = self.make_prompt(generator)
            bench.submit(f"{name} {row}", {stage: [prompt]}, {stage: self.sampling(row, tokens)}, modalities)

    def sampling(self, row: int, tokens: int) -> SamplingParams:
        return drawn(1000 + row, tokens)

    def make_prompt(self, generator: np.random.Generator) -> Payload:
        return random_prompt(generator, self.prompt, self.model.shape)


def measure_decode(case: DecodeCase, steps: int, *, profile: bool = False) -> tuple[StepTimes, tuple[float, float]]:
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
    """A short round, so that kernels are compiled and loaded. Its results are dropped."""
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


def decode_routing(case: DecodeCase) -> Routing | None:
    """The routing of the first steps that `measure_decode` times."""
    tokens = case.tokens(_COUNTED_STEPS)
    return _routing(case, case.engine(tokens, graphs=False), case.stage, ["measured"], tokens)


def _routing(case: DecodeCase, bench: BenchEngine, stage: str, names: Sequence[str], tokens: int) -> Routing | None:
    """The routing; None for a dense model. bench: without graphs; it is closed. names: of the rounds to run."""

    def run() -> None:
        for name in names:
            case.ask(bench, name, tokens, stage)
            bench.run()

    found = count_experts(bench, case.rows, run)
    bench.close()
    return found.get(stage)


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


def _latency(step: LaunchedStep) -> float:
    assert step.token is not None
    return microseconds(step.begin, step.token)


@dataclass(frozen=True, slots=True)
class HiddenRatio:
    """Step times, microseconds, with a hidden state of `width` emitted and gathered for every token, and with none: medians of
    rounds, in turns, of as many `steps`. sample_us, idle_us: of the former, the longest median. experts: of both, None for a dense
    model."""

    rows: int
    steps: int
    width: int
    none_us: float
    gathered_us: float
    ratio: float
    sample_us: float
    idle_us: float
    experts: Routing | None


def hidden_ratio(case: DecodeCase, steps: int, rounds: int = 3) -> HiddenRatio:
    """The ratio over the first `steps` steady steps of each round, where both have contexts of the same length."""
    tokens = case.tokens(steps)
    options = case.options(tokens)
    silent = case.opened(emitting(case.pipeline, 0, emits=False, **options), case.graphs, WRITER)
    width = case.model.shape.hidden_width
    loud = case.opened(emitting(case.pipeline, width, emits=True, **options), case.graphs, WRITER)
    engines = {False: silent, True: loud}
    asked = {False: ("text",), True: ("text", ROWS)}
    times: dict[bool, list[StepTimes]] = {False: [], True: []}
    names = [f"turn {turn}" for turn in range(rounds)]
    for emits, bench in engines.items():
        warm(case, bench, WRITER, asked[emits])
    for name in names:
        for emits, bench in engines.items():
            before = bench.engine.counters().get(READER, {}).get("rows", 0)
            case.ask(bench, name, tokens, WRITER, asked[emits])
            bench.run()
            gathered = bench.engine.counters().get(READER, {}).get("rows", 0) - before
            assert gathered == emits * case.rows * tokens, "every token's hidden state must have been gathered, once"
            times[emits].append(times_of(steady_steps(bench.recorders[WRITER].steps, case.rows)[:steps]))
            bench.clear()
    for bench in engines.values():
        bench.close()
    medians = {emits: float(np.median([t.step[0] for t in runs])) for emits, runs in times.items()}
    return HiddenRatio(
        rows=case.rows,
        steps=min(t.steps for runs in times.values() for t in runs),
        width=width,
        none_us=medians[False],
        gathered_us=medians[True],
        ratio=medians[True] / medians[False],
        sample_us=max(t.sample[0] for t in times[True]),
        idle_us=max(t.idle[0] for t in times[True]),
        experts=_hidden_routing(case, names),
    )


def _hidden_routing(case: DecodeCase, names: Sequence[str]) -> Routing | None:
    tokens = case.tokens(_COUNTED_STEPS)
    pipeline = emitting(case.pipeline, 0, emits=False, **case.options(tokens))
    return _routing(case, case.opened(pipeline, graphs=False, stage=WRITER), WRITER, names, tokens)
