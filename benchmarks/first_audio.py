"""First audio and slack of many prompts at once, by the rules that stages launch by, on a device with a clock of its own.

    python benchmarks/first_audio.py [--at-once 16] [--late 8 --late-words 400 --every 0.25] [--steps] [--json FILE]

A tiny Qwen3-Omni runs on the CPU. The clock does not measure it: it advances by the costs below for each step, as on one device
without overlap, so every run has the same times. The costs are a model of a large checkpoint, not a measurement of one.
`--at-once` short prompts arrive together; `--late` longer ones follow, one `--every` seconds. Per rule: first audio, real-time
factor, slack (see `crowd.py`), chunks, and the vocoder's steps. `--steps` prints the order of the first steps.

| rule | order of stages | chunks of the vocoder |
|---|---|---|
| fixed, 10 frames first | as in the pipeline | 10 frames, then 25 |
| fixed | as in the pipeline | 4 frames, then 25 |
| slack | by slack | 4 frames, then growing to 25 by slack |
"""

import argparse
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from bench.arguments import at_least, output_file, positive_float, positive_int
from bench.listening import Chunk, Crowd, SoundStream, crowd_of
from bench.report import environment, print_facts, print_table, write_json
from crowd import prompt_of
from omni.device import Phase, Stream
from omni.device.cpu import CpuDevice
from omni.engine import EngineOutput, EngineRequest, RequestFailed, StageOutput
from omni.frontend.base import Chat, Message, TextPart
from omni.payload import AudioChunk
from omni.sampling import SamplingParams
from omni.testing.engines import PipelineEngine, engine_for
from shapes import SHAPES


class StepCost(NamedTuple):
    """Milliseconds of a step: fixed, of a row that decodes, and of a token of a prefill chunk."""

    fixed: float
    row: float
    token: float


COSTS: Mapping[str, StepCost] = {"thinker": StepCost(4.0, 0.5, 0.02), "talker": StepCost(2.2, 0.2, 0.01)}
_CHUNK_FIXED, _CHUNK_FRAME = 4.0, 0.02
"""Milliseconds of a vocoder's step, and of a frame of each of its rows."""


class TimedStep(NamedTuple):
    """began: in seconds of the device's clock. work: the name of its work."""

    began: float
    stage: str
    work: str


class PacedDevice(CpuDevice):
    """The CPU, with a clock that advances by `COSTS`. now: seconds. steps: in the order of their launches."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.steps: list[TimedStep] = []

    def seconds(self) -> float:
        return self.now

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        super().launch(stream, phase, *buffers)
        if phase.__name__ == "decode_frames":
            indices_BN = buffers[3]
            assert isinstance(indices_BN, torch.Tensor)
            rows, frames = indices_BN.shape
            self._take(stream.name, f"{rows} x {frames} frames", _CHUNK_FIXED + _CHUNK_FRAME * rows * frames)

    @contextmanager
    def host_span(self, stream: Stream, name: str, **numbers: int) -> Iterator[None]:
        yield
        if name == "execute_model":
            cost, decodes, prefill = COSTS[stream.name], numbers["decodes"], numbers["prefill"]
            took = cost.fixed + cost.row * decodes + cost.token * prefill
            self._take(stream.name, f"{decodes} rows, {prefill} prompt tokens", took)

    def _take(self, stage: str, work: str, milliseconds: float) -> None:
        self.steps.append(TimedStep(self.now, stage, work))
        self.now += milliseconds / 1000


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    scheduling: str
    first_chunk_frames: int


RULES = (Rule("fixed, 10 frames first", "fixed", 10), Rule("fixed", "fixed", 4), Rule("slack", "slack", 4))


@dataclass(frozen=True, slots=True)
class ArrivingPrompt:
    at: float
    prompt: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """early, late: of the prompts at once, and of those that followed; None without any. steps: of the vocoder. underruns: of all
    streams, as the engine counts them. launches: of all stages."""

    rule: str
    early: Crowd
    late: Crowd | None
    steps: int
    underruns: int
    launches: Sequence[TimedStep]


def arrivals(arguments: argparse.Namespace) -> list[ArrivingPrompt]:
    early = [ArrivingPrompt(0.0, prompt_of(salt)) for salt in range(arguments.at_once)]
    words = random.Random(1)
    long = [
        " ".join(words.choice(("one", "river", "runs", "past", "a", "town")) for _ in range(arguments.late_words))
        for _ in range(arguments.late)
    ]
    return early + [ArrivingPrompt((1 + index) * arguments.every, f"{index} {text}") for index, text in enumerate(long)]


def request_of(engine: PipelineEngine, index: int, prompt: str, arguments: argparse.Namespace) -> EngineRequest:
    sampling = {
        "thinker": SamplingParams(temperature=0.0, max_tokens=arguments.tokens, ignore_eos=True),
        # M tokens give M - 1 frames.
        "talker": SamplingParams(temperature=0.0, max_tokens=arguments.frames + 1, ignore_eos=True),
    }
    asked = Chat((Message("user", (TextPart(prompt),)),), frozenset({"text", "audio"}), None, sampling)
    return replace(engine.request(asked), id=str(index))


class Ear:
    """The sink of one answer."""

    def __init__(self, device: PacedDevice, began: float) -> None:
        self._device = device
        self._began = began
        self._chunks: list[Chunk] = []

    def take(self, output: EngineOutput) -> None:
        if isinstance(output, RequestFailed):
            raise output.error
        if isinstance(output, StageOutput) and isinstance(output.meta, AudioChunk):
            sound = len(output.meta.samples) / output.meta.sample_rate
            self._chunks.append(Chunk(self._device.now - self._began, sound))

    @property
    def heard(self) -> SoundStream:
        return SoundStream(self._began, tuple(self._chunks))


def listen(folder: Path, rule: Rule, arguments: argparse.Namespace) -> Outcome:
    device, waiting = PacedDevice(), arrivals(arguments)
    rows = {f"{stage}.max_num_seqs": len(waiting) for stage in ("thinker", "talker", "code2wav")}
    settings = {**rows, "code2wav.first_chunk_frames": rule.first_chunk_frames}
    with engine_for(
        folder,
        device=device,
        overrides=settings,
        load_format="dummy",
        scheduling=rule.scheduling,
        max_active_requests=len(waiting),
    ) as engine:
        prepared = [
            (one.at, request_of(engine, index, one.prompt, arguments), Ear(device, one.at))
            for index, one in enumerate(waiting)
        ]
        device.now, device.steps = 0.0, []  # those of the start
        ears = [ear for _, _, ear in prepared]
        while prepared or not engine.engine.idle:
            while prepared and prepared[0][0] <= device.now:
                _, request, ear = prepared.pop(0)
                engine.engine.submit(request, ear.take)
            if not engine.tick():
                device.now = max(device.now + 1e-4, prepared[0][0] if prepared and engine.engine.idle else 0.0)
        counters = engine.engine.counters()["code2wav"]
    streams = [ear.heard for ear in ears]
    early, late = streams[: arguments.at_once], streams[arguments.at_once :]
    return Outcome(
        rule.name,
        crowd_of(early),
        crowd_of(late) if late else None,
        counters["steps"],
        counters["underruns"],
        device.steps,
    )


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    number = partial("{:.2f}".format)
    rows = []
    for one in outcomes:
        for which, crowd in (("at once", one.early), ("late", one.late)):
            if crowd is None:
                continue
            slacks = ("" if each is None else number(each) for each in (crowd.least_slack, crowd.slack_p5))
            first = (f"{1000 * each:.0f}" for each in (crowd.first_audio_p50, crowd.first_audio_p95))
            chunks = " ".join(map(number, crowd.chunks))
            rows.append((one.rule, which, *first, number(crowd.rtf), *slacks, crowd.gaps, chunks, one.steps))
    heads = ("rule", "prompts", "first audio p50 ms", "p95", "RTF", "least slack s", "p5", "gaps", "chunks s", "steps")
    print_table(heads, rows)


def print_timeline(outcome: Outcome, steps: int = 60) -> None:
    print(f"\n{outcome.rule}")
    for step in outcome.launches[:steps]:
        print(f"{1000 * step.began:8.1f} ms  {step.stage:10} {step.work}")


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--at-once", type=positive_int, default=16)
    parser.add_argument("--late", type=at_least(0), default=8, help="prompts that follow")
    parser.add_argument("--late-words", type=positive_int, default=400)
    parser.add_argument("--every", type=positive_float, default=0.25, help="seconds between them")
    parser.add_argument("--tokens", type=positive_int, default=40)
    parser.add_argument("--frames", type=positive_int, default=100)
    parser.add_argument("--steps", action="store_true", help="print the first steps")
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args(given)
    with tempfile.TemporaryDirectory() as folder:
        SHAPES["tiny-omni"](Path(folder))
        outcomes = [listen(Path(folder), rule, arguments) for rule in RULES]
    print_outcomes(outcomes)
    for outcome in outcomes if arguments.steps else ():
        print_timeline(outcome)
    facts = environment()
    print_facts(facts)
    numbers = [{name: value for name, value in asdict(one).items() if name != "launches"} for one in outcomes]
    write_json(arguments.json, numbers, facts)


if __name__ == "__main__":
    main()
