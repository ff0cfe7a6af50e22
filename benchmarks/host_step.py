"""Host time of one decode step, with the phases that compute replaced by no-ops.

    python benchmarks/host_step.py [--steps 300] [--json FILE]

Left out are the phases that are the model's (`embed_inputs`, `run_forward`, `compute_logits`, `predict_codes`, `score_prompt`) or
the sampler's own (`sample_rows`, `accept_tokens`, `score_tokens`). What remains is omni's own work for a step: planning,
packing, launching the other phases (counting tokens for penalties among them), reading tokens and log-probabilities, routing them
to their sinks.

Reported are wall time, and CPU time of the engine's thread, which other programs disturb less. First are whole steps of 1,
8 and 64 rows of 128 to 8,192 tokens, then rows with penalties and log-probabilities; torch operations per step are counted by a
dispatch mode in a run of their own. The rows after these run beside a thread of pure Python, which takes the interpreter lock
whenever a torch call releases it. Last is `Runner.sample_tokens` by itself, at 8 rows, by width of the hidden states or frames
that each token emits, and by how many tokens of a prompt its step has run.
"""

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.arguments import at_least, output_file
from omni.connector import EdgeEnd
from omni.device import COMPLETED
from omni.device.base import Phase, Stream
from omni.device.cpu import CpuDevice
from omni.engine import Engine, EngineRequest
from omni.engine.admission import Admission
from omni.engine.orchestrator import Orchestrator
from omni.engine.peers import EngineEdges
from omni.payload import Payload
from omni.pipeline import Pipeline, PipelineOutput, Stage
from omni.sampling import SamplingParams
from omni.stage import Abort, Ended, Feed, Open, Produced
from omni_ar.attention import TorchPagedAttention
from omni_ar.inputs import Prompt
from omni_ar.kernels.step.handoff import NUM_TOKENS
from omni_ar.model import ArModel, ArShape, Batch, CodecModel, Codes, DrawCode, NextTokens, PromptTokens
from omni_ar.options import ArOptions
from omni_ar.run.limits import Limits
from omni_ar.run.runner import Runner
from omni_ar.run.step import SampledStep, StepContext
from omni_ar.run.worker import ArWorker

_NO_OPS = (
    "embed_inputs",
    "run_forward",
    "compute_logits",
    "predict_codes",
    "score_prompt",
    "sample_rows",
    "accept_tokens",
    "score_tokens",
)
_PLAIN = SamplingParams()
_PENALTIES = SamplingParams(
    repetition_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.1, logprobs=5, temperature=0.0
)


class _SkippingDevice(CpuDevice):
    """The CPU, without the phases that are the model's or the sampler's own."""

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        if phase.__name__ not in _NO_OPS:
            super().launch(stream, phase, *buffers)


class _NoModel(ArModel):
    """A model's shape. It never runs."""

    def __init__(self, width: int = 0) -> None:
        """width: of the hidden state that each token emits; 0 emits none."""
        super().__init__()
        self._width = width

    @property
    def shape(self) -> ArShape:
        return ArShape(
            num_layers=1,
            num_kv_heads=1,
            head_dim=2,
            hidden_width=self._width or 2,
            vocab_size=32,
            max_positions=16384,
            payload_width=self._width,
            emits_tokens=self._width > 0,
        )

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        raise AssertionError("skipped")

    def embed_next(self, step: NextTokens) -> Tensor:
        raise AssertionError("skipped")

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        raise AssertionError("skipped")

    def logits(self, hidden_RD: Tensor) -> Tensor:
        raise AssertionError("skipped")


class _NoCodec(_NoModel, CodecModel):
    """The shape of a model whose token begins a frame of codes. It never runs."""

    num_groups = 16

    def __init__(self, width: int) -> None:
        """width: of the codes' part of the next input."""
        super().__init__()
        self._next_width = width

    @property
    def next_width(self) -> int:
        return self._next_width

    def predict_codes(self, hidden_RD: Tensor, code0_R: Tensor, draw: DrawCode) -> Codes:
        raise AssertionError("skipped")

    def embed_codes(self, codes_RG: Tensor) -> Tensor:
        raise AssertionError("skipped")


class HostTimes:
    """Microseconds of its block: on the clock, and of this thread on its core."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self._start = self._cpu_start = 0

    def __enter__(self) -> None:
        self._start, self._cpu_start = time.perf_counter_ns(), time.thread_time_ns()

    def __exit__(self, *_: object) -> None:
        self.cpu.append((time.thread_time_ns() - self._cpu_start) / 1000)
        self.wall.append((time.perf_counter_ns() - self._start) / 1000)

    def summary(self) -> dict[str, float]:
        wall = sorted(self.wall)
        return {
            "p50": statistics.median(wall),
            "p99": wall[int(len(wall) * 0.99)],
            "cpu": statistics.median(self.cpu),
        }


class _Counter(TorchDispatchMode):
    """Counts operations that reach the dispatcher."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.calls += 1
        return func(*args, **(kwargs or {}))


def worker_of(device: CpuDevice, model: ArModel, options: ArOptions) -> tuple[ArWorker, Runner]:
    """A stage named `"decode"` whose rows all run on, a token a step."""
    limits = Limits.of("decode", options, model.shape)
    runner = Runner(
        "decode", device, model=model, backend=TorchPagedAttention(), limits=limits, dtype=torch.float32, priority=0
    )
    blocks = limits.rows * limits.max_blocks
    runner.allocate(blocks)
    # What `accept_tokens` would write.
    runner._state.handoff.device[..., NUM_TOKENS] = runner._buffers.accepted_NW[:, NUM_TOKENS] = 1
    return ArWorker("decode", runner, shape=model.shape, limits=limits, options=options, num_blocks=blocks), runner


def prompt_of(length: int) -> Prompt:
    ids = np.zeros((1, length), np.int64)
    return Prompt(columns=ids, positions=np.arange(length)[None], next_position=length)


def engine_with(rows: int, length: int, steps: int, sampling: SamplingParams = _PLAIN) -> Engine:
    """An engine in steady decode: `rows` requests of `length` prompt tokens that will run `steps` steps and more."""
    options = ArOptions(max_num_seqs=rows, max_model_len=length + steps + rows + 64)
    device = _SkippingDevice()
    worker, _ = worker_of(device, _NoModel(), options)
    stage = Stage(name="decode", kind="ar", model="none:none", options=options)
    outputs = (PipelineOutput(modality="text", stage="decode"),)
    pipeline = Pipeline(family="none", stages=(stage,), outputs=outputs, frontend="none:none")
    ends = EngineEdges("", [], lambda edge: EdgeEnd(edge.name, device, edge.pool_bytes))
    orchestrator = Orchestrator(
        pipeline, workers={"decode": worker}, adapters={}, ends=ends, admission=Admission(rows, 0)
    )
    engine = Engine(device, orchestrator, workers={"decode": worker}, ends=ends, memory={})
    # Rows that are admitted early decode while the others' prompts run: one prompt of this length a step at the least.
    asked = {"decode": SamplingParams(max_tokens=steps + rows + 32).with_defaults(sampling)}
    for index in range(rows):
        inputs = {"decode": [Payload(prompt_of(length))]}
        engine.submit(EngineRequest(str(index), frozenset({"text"}), inputs, sampling=asked), lambda _: None)
    return engine


def measure(rows: int, length: int, steps: int, sampling: SamplingParams = _PLAIN) -> dict[str, float]:
    """Median and p99 of a decode step's wall time, median of its CPU time (microseconds), and its torch operations."""
    with torch.inference_mode():
        engine = engine_with(rows, length, steps, sampling)
        while engine.usage()["decode"]["rows"] < rows:
            engine.tick()
        for _ in range(8):
            engine.tick()
        times = HostTimes()
        for _ in range(steps - 16):
            with times:
                engine.tick()
        counter = _Counter()
        with counter:
            engine.tick()
        assert engine.usage()["decode"]["rows"] == rows, "every row must still decode"
        assert counter.calls, "a step must have run"
    return times.summary() | {"torch_ops": counter.calls}


def measure_handoff(model: ArModel, prefill: int, repeats: int = 60) -> dict[str, float]:
    """`sample_tokens` of steps of 8 rows. prefill: prompt tokens of one of them that the step runs, up to the prompt's end."""
    options = ArOptions(max_num_seqs=8, max_num_batched_tokens=4096, max_model_len=6144, prefix_cache=False)
    with torch.inference_mode():
        worker, runner = worker_of(_SkippingDevice(), model, options)
        sample, times = runner.sample_tokens, HostTimes()

        def timed(context: StepContext) -> SampledStep:
            if len(context.requests.rows) < 8:
                return sample(context)
            with times:
                return sample(context)

        runner.sample_tokens = timed  # type: ignore[method-assign]
        for index in range(7):
            ask(worker, str(index), 1)
        for repeat in range(repeats):
            ask(worker, f"new {repeat}", prefill)
            tick(worker)  # the step that runs its prompt
            worker.inbox.append(Abort(f"new {repeat}"))
            tick(worker)
        assert len(times.wall) == repeats, "one step each must have had eight rows"
    return times.summary()


def ask(worker: ArWorker, name: str, length: int) -> None:
    opened = Open(name, SamplingParams(max_tokens=4096), frozenset({"prompt"}))
    worker.inbox.extend((opened, Feed(name, Payload(prompt_of(length)), COMPLETED), Ended(name, "prompt")))


def tick(worker: ArWorker) -> None:
    worker.tick()
    while worker.outbox:
        message = worker.outbox.popleft()
        assert isinstance(message, Produced), message
        message.close()  # without consumers


@contextmanager
def python_beside() -> Iterator[None]:
    """A thread of pure Python that never rests."""
    stop = threading.Event()

    def spin() -> None:
        count = 0
        while not stop.is_set():
            count += 1

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=at_least(32), default=300, help="decode steps of each case, at least 32")
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, dict[str, float]] = {}

    def show(name: str, run: Callable[[], dict[str, float]]) -> None:
        row = report[name] = run()
        operations = f"   {row['torch_ops']:3.0f} torch operations" if "torch_ops" in row else ""
        times = f"p50 {row['p50']:9.1f} us   p99 {row['p99']:9.1f} us   cpu {row['cpu']:9.1f} us"
        print(f"{name:48} {times}{operations}", flush=True)

    steps = arguments.steps
    for rows in (1, 8, 64):
        for length in (128, 1024, 8192):
            show(f"{rows} rows of {length} tokens", partial(measure, rows, length, steps))
    for rows in (8, 64):
        show(f"{rows} rows, penalties and log-probabilities", partial(measure, rows, 128, steps, _PENALTIES))
    for interval in (0.005, 0.00001):
        sys.setswitchinterval(interval)
        with python_beside():
            show(f"8 rows of 128, Python beside, {interval * 1e3:g} ms switch", partial(measure, 8, 128, 1000))
    sys.setswitchinterval(0.005)
    for width in (64, 256, 1024, 4096):
        show(f"sample_tokens, hidden states {width} wide", partial(measure_handoff, _NoModel(width), 1))
        show(f"sample_tokens, frames, inputs {width} wide", partial(measure_handoff, _NoCodec(width), 1))
    for length in (1, 16, 128, 1024, 2048):
        show(f"sample_tokens, prefill of {length}", partial(measure_handoff, _NoModel(1024), length))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
