"""Host time of one decode step, with the forward and sampler phases as no-ops.

    python benchmarks/host_step.py [--steps 300] [--json FILE]

What is left is what omni itself does for a step: planning, packing, launching the other phases, reading the tokens, routing
them to their sinks. Reported for 1, 8 and 64 rows and for sequences of 128 to 8,192 tokens; torch operations per step are
counted by a dispatch mode in a run of their own; the last rows run beside a thread of pure Python, which takes the interpreter
lock whenever a torch call lets go of it.
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

from omni.device.base import Phase, Stream
from omni.device.cpu import CpuDevice
from omni.engine import Engine, EngineRequest
from omni.engine.admission import Admission
from omni.engine.orchestrator import Orchestrator
from omni.payload import Payload
from omni.pipeline import Output, Pipeline, Stage
from omni.sampling_params import SamplingParams
from omni_ar.attention import TorchPagedAttention
from omni_ar.inputs import Prompt
from omni_ar.model import ArModel, ArShape, Batch, NextTokens, PromptTokens
from omni_ar.options import ArOptions
from omni_ar.run.limits import Limits
from omni_ar.run.runner import Runner
from omni_ar.run.worker import ArWorker

_NO_OPS = ("run_forward", "compute_logits", "sample_rows")


class _SkippingDevice(CpuDevice):
    """The CPU, without the phases that are the model's own."""

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        if phase.__name__ not in _NO_OPS:
            super().launch(stream, phase, *buffers)


class _NoModel(ArModel):
    """Only a shape: none of it runs."""

    shape = ArShape(num_layers=1, num_kv_heads=1, head_dim=2, hidden_width=2, vocab_size=16, max_positions=16384)

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        raise AssertionError("skipped")

    def embed_next(self, step: NextTokens) -> Tensor:
        raise AssertionError("skipped")

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        raise AssertionError("skipped")

    def logits(self, hidden_RD: Tensor) -> Tensor:
        raise AssertionError("skipped")


class _Counter(TorchDispatchMode):
    """Counts operations that reach the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.calls += 1
        return func(*args, **(kwargs or {}))


def engine_with(rows: int, length: int, steps: int) -> Engine:
    """An engine in steady decode: `rows` requests of `length` prompt tokens that will run `steps` steps and more."""
    options = ArOptions(max_num_seqs=rows, max_model_len=length + steps + rows + 64)
    device, model = _SkippingDevice(), _NoModel()
    limits = Limits.of("decode", options, model.shape)
    runner = Runner("decode", device, model, TorchPagedAttention(), limits, torch.float32, 0)
    blocks = limits.rows * limits.max_blocks
    runner.allocate(blocks)
    worker = ArWorker("decode", runner, model.shape, limits, options, blocks)
    stage = Stage(name="decode", kind="ar", model="none:none", options=options)
    outputs = (Output(modality="text", stage="decode"),)
    pipeline = Pipeline(family="none", stages=(stage,), outputs=outputs, frontend="none:none")
    orchestrator = Orchestrator(pipeline, {"decode": worker}, {}, {}, device.stream("transfer"), Admission(rows, 0))
    engine = Engine(device, orchestrator, {"decode": worker}, {}, {})
    ids = np.zeros((1, length), np.int64)
    prompt = Prompt(columns=ids, positions=np.arange(length)[None], next_position=length)
    for index in range(rows):
        # Rows that are admitted early decode while the others' prompts run: one prompt of this length a step at the least.
        sampling = {"decode": SamplingParams(max_tokens=steps + rows + 32)}
        request = EngineRequest(str(index), frozenset({"text"}), {"decode": [Payload(prompt)]}, sampling=sampling)
        engine.submit(request, lambda _: None)
    return engine


def measure(rows: int, length: int, steps: int) -> dict[str, float]:
    """Median, p99 (microseconds) and torch operations of a decode step."""
    with torch.inference_mode():
        engine = engine_with(rows, length, steps)
        while engine.usage()["decode"]["rows"] < rows:
            engine.tick()
        for _ in range(8):
            engine.tick()
        times = []
        for _ in range(steps - 16):
            start = time.perf_counter_ns()
            engine.tick()
            times.append((time.perf_counter_ns() - start) / 1000)
        counter = _Counter()
        with counter:
            engine.tick()
        assert engine.usage()["decode"]["rows"] == rows, "every row must still decode"
        assert counter.calls, "a step must have run"
    times.sort()
    return {"p50": statistics.median(times), "p99": times[int(len(times) * 0.99)], "torch_ops": counter.calls}


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
    parser.add_argument("--steps", type=int, default=300, help="decode steps to time in each case")
    parser.add_argument("--json", help="write the numbers here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, dict[str, float]] = {}

    def show(name: str, run: Callable[[], dict[str, float]]) -> None:
        report[name] = run()
        row = report[name]
        print(
            f"{name:44} p50 {row['p50']:9.1f} us   p99 {row['p99']:9.1f} us   {row['torch_ops']:3.0f} torch operations"
        )

    for rows in (1, 8, 64):
        for length in (128, 1024, 8192):
            run = partial(measure, rows, length, arguments.steps)
            show(f"{rows} rows of {length} tokens", run)
    for interval in (0.005, 0.00001):
        sys.setswitchinterval(interval)
        with python_beside():
            show(f"8 rows of 128, Python beside, {interval * 1e3:g} ms switch", partial(measure, 8, 128, 1000))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
