"""A thinker and a talker that do not feed each other, decoding at once: in one engine, or each in its own."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from bench.device import TimedDevice, synchronize
from bench.emit import THINKER
from bench.engine import BenchEngine
from bench.pipelines import ROWS, TALKER, family_pipeline, one_stage, talker_alone, thinker_and_talker
from bench.steps import LaunchedStep, StepTimes, times_of
from bench.traffic import drawn, random_prompt, same_text
from omni.checkpoint import Checkpoint
from omni.pipeline import Pipeline
from omni.sampling import SamplingParams
from omni_qwen3_omni.config import read_config

_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Load:
    """The load of both. rows: by stage. prompt: ids of each prompt. tokens: that a request may draw, by stage: more than fit in
    the time. seconds, steps: that are measured at least, once all rows decode. priority: of the talker's streams."""

    rows: Mapping[str, int]
    prompt: int
    tokens: Mapping[str, int]
    seconds: float
    dtype: str
    graphs: bool
    steps: int = 50
    priority: int = -1

    def options(self, stage: str) -> dict[str, object]:
        rows, length = self.rows[stage], self.prompt + self.tokens[stage]
        return {
            "max_num_seqs": rows,
            "max_model_len": length,
            "block_size": _BLOCK,
            "num_blocks": rows * (-(-length // _BLOCK) + 1),
            "graph_batch_sizes": (rows,),
        }


FULL = Load({THINKER: 32, TALKER: 8}, 512, {THINKER: 2000, TALKER: 6000}, 2.0, "bfloat16", True)
TINY = Load({THINKER: 2, TALKER: 1}, 8, {THINKER: 4000, TALKER: 4000}, 0.05, "float32", False, steps=8)


class Meeting(Protocol):
    """A barrier for sides that measure at the same time, for repeated use. They tick while they wait."""

    def arrive(self) -> None: ...

    def all_here(self) -> bool:
        """Whether all sides have arrived since the last `arrive`. Raises RuntimeError if a side has ended."""
        ...


class Alone:
    """A meeting of one."""

    def arrive(self) -> None:
        pass

    def all_here(self) -> bool:
        return True


def pipeline_of(checkpoint: Checkpoint, load: Load, stages: Sequence[str]) -> Pipeline:
    """The pipeline of one of the two stages, or of both."""
    family, talker = family_pipeline(checkpoint), read_config(checkpoint).talker
    assert talker is not None
    options = {stage: load.options(stage) for stage in stages}
    if len(stages) == 2:
        return thinker_and_talker(family, talker.num_groups, options, joined=False, priority=load.priority)
    if stages[0] == TALKER:
        return talker_alone(family, talker.num_groups, priority=load.priority, **options[TALKER])
    return one_stage(family, THINKER, **options[THINKER])


def measure(
    checkpoint: Checkpoint, device: TimedDevice, load: Load, stages: Sequence[str], meeting: Meeting
) -> dict[str, StepTimes]:
    """Times of each stage's steps while all of them decode.

    Sides that measure at the same time meet three times: loaded, so that requests start together and no context grows during a
    load; decoding, at the beginning of the measured time; and at its end, before a side stops.
    """
    bench = BenchEngine(pipeline_of(checkpoint, load, stages), checkpoint, device, load.dtype, load.graphs)
    config = read_config(checkpoint)
    assert config.talker is not None
    with torch.inference_mode():
        _meet(bench, meeting)
        for stage in stages:
            _ask(bench, load, stage, min(config.thinker_vocab_size, config.talker.vocab_size))
        _tick(bench, lambda: all(_decodes(bench, load, stage, 8) for stage in stages))
        _meet(bench, meeting)
        window = _window(bench, load)
        _meet(bench, meeting)
    synchronize(device)
    if bench.under_way < sum(load.rows[stage] for stage in stages):
        raise RuntimeError("rows ran out of tokens before all had measured: give `Load` more tokens")
    times = {stage: times_of(_steps_in(bench, load, stage, window)) for stage in stages}
    bench.close()
    return times


def _window(bench: BenchEngine, load: Load) -> tuple[int, int]:
    """Ticks for the measured time. Returns its beginning and its end, `perf_counter_ns`."""
    start = time.perf_counter_ns()
    end = start + int(load.seconds * 1e9)
    wanted = {stage: len(recorder.steps) + load.steps for stage, recorder in bench.recorders.items()}

    def finished() -> bool:
        enough = all(len(bench.recorders[stage].steps) > count for stage, count in wanted.items())
        return enough and time.perf_counter_ns() >= end

    _tick(bench, finished)
    return start, time.perf_counter_ns()


def _steps_in(bench: BenchEngine, load: Load, stage: str, window: tuple[int, int]) -> list[LaunchedStep]:
    start, end = window
    steps = [step for step in bench.recorders[stage].steps if start <= step.started < end]
    assert len(steps) >= load.steps, f"{stage}: {len(steps)} steps in the measured time"
    assert all(_is_full(step, load.rows[stage]) for step in steps), f"{stage}: every row must decode throughout"
    return steps


def _meet(bench: BenchEngine, meeting: Meeting) -> None:
    meeting.arrive()
    _tick(bench, meeting.all_here)


def _tick(bench: BenchEngine, until: Callable[[], bool]) -> None:
    while not until():
        bench.tick()


def _is_full(step: LaunchedStep, rows: int) -> bool:
    return step.rows == rows and not step.prompt_tokens


def _decodes(bench: BenchEngine, load: Load, stage: str, steps: int) -> bool:
    """Whether the newest steps decode all rows, and have no prompt tokens."""
    newest = bench.recorders[stage].steps[-steps:]
    return len(newest) == steps and all(_is_full(step, load.rows[stage]) for step in newest)


def _ask(bench: BenchEngine, load: Load, stage: str, vocab: int) -> None:
    """vocab: ids that every table of both models has."""
    generator, shape = np.random.default_rng(7), bench.runners[stage]._model.shape
    for row in range(load.rows[stage]):
        inputs, tokens = [random_prompt(generator, load.prompt, shape, vocab=vocab)], load.tokens[stage]
        if stage == TALKER:
            inputs.append(same_text())
            sampling, modalities = SamplingParams(max_tokens=tokens, seed=row, ignore_eos=True), (ROWS,)
        else:
            sampling, modalities = drawn(row, tokens), ("text",)
        bench.submit(f"{stage} {row}", {stage: inputs}, {stage: sampling}, modalities)
