"""Times of one stage's steps, on the host and on the device."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bench.device import Mark, TimedDevice, microseconds, passed
from omni_ar.run.plan import StepPlan
from omni_ar.run.runner import Runner
from omni_ar.run.step import SampledStep, StepContext


@dataclass(slots=True)
class LaunchedStep:
    """rows: that are sampled. prompt_tokens: that are run in chunks. started: of its launch, `perf_counter_ns`.

    starved: the device had run out of work before the step's first part was launched. begin, end: around all of it on the main
    stream; token: its token point, None if it sampled nothing. execute_us, sample_us: host time of the runner's calls.
    """

    rows: int
    prompt_tokens: int
    started: int
    begin: Mark
    starved: bool = False
    execute_us: float = 0.0
    sample_us: float = 0.0
    end: Mark | None = None
    token: Mark | None = None


SampleTokens = Callable[[StepContext], SampledStep]


class StepRecorder:
    """Keeps a record of every step that `runner` launches from now on."""

    def __init__(self, device: TimedDevice, stage: str, runner: Runner) -> None:
        self.steps: list[LaunchedStep] = []
        self._device, self._stage, self._stream = device, stage, runner.stream
        self._execute, self._sample = runner.execute_model, runner.sample_tokens
        runner.execute_model = self._timed_execute  # type: ignore[method-assign]
        runner.sample_tokens = self._timed_sample  # type: ignore[method-assign]

    def _timed_execute(self, plan: StepPlan) -> StepContext:
        newest = self.steps[-1].end if self.steps else None
        prompt_tokens = sum(chunk.length for chunk in plan.chunks)
        begin = self._device.mark(self._stream)
        start = time.perf_counter_ns()
        step = LaunchedStep(len(plan.sampled), prompt_tokens, start, begin)
        self.steps.append(step)
        context = self._execute(plan)
        step.execute_us = (time.perf_counter_ns() - start) / 1000
        step.starved = newest is None or passed(newest)
        return context

    def around_sampling(self, around: Callable[[SampleTokens, StepContext], SampledStep]) -> None:
        """`around` is called in place of the runner's `sample_tokens`, with it; the time it takes counts as that one's."""
        self._sample = partial(around, self._sample)

    def launched(self) -> None:
        """The newest step's last work is on the main stream."""
        self.steps[-1].end = self._device.mark(self._stream)

    def _timed_sample(self, context: StepContext) -> SampledStep:
        start = time.perf_counter_ns()
        sampled = self._sample(context)
        step = self.steps[-1]
        step.sample_us = (time.perf_counter_ns() - start) / 1000
        if step.end is None:
            self.launched()
        step.token = self._device.token_marks[self._stage] if context.requests.rows else None
        return sampled


def steady_steps(steps: Sequence[LaunchedStep], rows: int, skip: int = 4) -> list[LaunchedStep]:
    """The longest row of consecutive steps in which `rows` rows decode and no prompt runs, without `skip` at each end."""
    best: list[LaunchedStep] = []
    run: list[LaunchedStep] = []
    for step in steps:
        run = [*run, step] if step.rows == rows and not step.prompt_tokens else []
        best = run if len(run) > len(best) else best
    return best[skip:-skip] if skip else best


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of consecutive decode steps, in microseconds.

    step: between token events, p50 and p99. launch: between launches on the host, p50 and p99; wall: the mean. idle: of the device
    between the end of a step and the start of the next, p50 and p99; where the device ran dry, host time of launching the next
    one's first part counts in full. starved: share of steps for which it had. execute, sample: host time of the runner's calls,
    p50 and p99.
    """

    steps: int
    step: tuple[float, float]
    launch: tuple[float, float]
    wall: float
    idle: tuple[float, float]
    starved: float
    execute: tuple[float, float]
    sample: tuple[float, float]

    @property
    def brief(self) -> str:
        return f"step {self.step[0] / 1000:.3f} ms, sample_tokens {self.sample[0]:.0f} us, {self.steps} steps"


def times_of(steps: Sequence[LaunchedStep]) -> StepTimes:
    """The device has been synchronized since. Raises ValueError for fewer than three steps."""
    if len(steps) < 3:
        raise ValueError(f"{len(steps)} steady steps are too few to tell anything: run more")
    pairs = list(itertools.pairwise(steps))
    tokens = [microseconds(a.token, b.token) for a, b in pairs if a.token is not None and b.token is not None]
    idle = [microseconds(a.end, b.begin) + (b.execute_us if b.starved else 0.0) for a, b in pairs if a.end is not None]
    return StepTimes(
        steps=len(steps),
        step=percentiles(tokens),
        launch=percentiles([(b.started - a.started) / 1000 for a, b in pairs]),
        wall=(steps[-1].started - steps[0].started) / 1000 / len(pairs),
        idle=percentiles(idle),
        starved=float(np.mean([b.starved for _, b in pairs])),
        execute=percentiles([step.execute_us for step in steps]),
        sample=percentiles([step.sample_us for step in steps]),
    )


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """p50 and p99."""
    p50, p99 = np.percentile(values, [50, 99])
    return float(p50), float(p99)
