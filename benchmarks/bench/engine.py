"""An engine over dummy weights, ticked by the benchmark in its own thread."""

import gc
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import torch

from bench.device import TimedDevice, synchronize
from bench.plugin import bench_plugins
from bench.steps import StepRecorder
from omni.checkpoint import Checkpoint
from omni.engine import (
    EngineOptions,
    EngineOutput,
    EngineRequest,
    RequestFailed,
    RequestFinished,
    build_engine,
    check_pipeline,
)
from omni.errors import OmniError
from omni.payload import Payload
from omni.pipeline import Pipeline
from omni.sampling import SamplingParams
from omni_ar.run.runner import Runner
from omni_ar.run.worker import ArWorker


class BenchEngine:
    """recorders: of the autoregressive stages. ticks: microseconds of each tick that launched a step, of any stage, and when it
    began, `perf_counter_ns`."""

    def __init__(
        self, pipeline: Pipeline, checkpoint: Checkpoint, device: TimedDevice, dtype: str, graphs: bool
    ) -> None:
        plugins = bench_plugins()
        plan = check_pipeline(pipeline, plugins)
        options = EngineOptions(dtype=dtype, load_format="dummy", graphs=graphs)
        start = time.perf_counter()
        self.device = device
        self.engine = build_engine(plan, checkpoint, plugins, device, options)
        self.seconds = time.perf_counter() - start
        workers = {name: worker for name, worker in self.engine._workers.items() if isinstance(worker, ArWorker)}
        self.runners: Mapping[str, Runner] = {name: worker._runner for name, worker in workers.items()}
        self.recorders = {name: StepRecorder(device, name, runner) for name, runner in self.runners.items()}
        self.ticks: list[tuple[int, float]] = []
        self._open: set[str] = set()
        self._error: OmniError | None = None

    def submit(
        self,
        request_id: str,
        inputs: Mapping[str, Sequence[Payload]],
        sampling: Mapping[str, SamplingParams],
        modalities: Sequence[str] = ("text",),
        edges: Mapping[str, msgspec.Struct] | None = None,
    ) -> None:
        self._open.add(request_id)

        def take(output: EngineOutput) -> None:
            if isinstance(output, RequestFailed) and self._error is None:
                self._error = output.error
            if isinstance(output, RequestFinished):
                self._open.discard(request_id)

        request = EngineRequest(request_id, frozenset(modalities), inputs, edges=edges or {}, sampling=sampling)
        self.engine.submit(request, take)

    @property
    def finished(self) -> bool:
        """Whether all requests have been answered."""
        return not self._open

    @property
    def under_way(self) -> int:
        """Requests that have not been answered."""
        return len(self._open)

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Ticks without a rest until all requests are answered, or `until`; then waits for the device."""
        with torch.inference_mode():
            while not (self.finished if until is None else until()):
                self.tick()
        synchronize(self.device)

    def tick(self) -> None:
        """Raises the error of a failed request, which gets no answer."""
        if self._error is not None:
            raise self._error
        launched, start = self._launched(), time.perf_counter_ns()
        self.engine.tick()
        if self._launched() > launched:
            self.ticks.append((start, (time.perf_counter_ns() - start) / 1000))

    def clear(self) -> None:
        """Clears the recorded steps."""
        self.ticks.clear()
        for recorder in self.recorders.values():
            recorder.steps.clear()

    def close(self) -> None:
        """Aborts the requests under way."""
        self.engine.close()
        self.recorders.clear()
        self.runners = {}
        del self.engine
        if self.device.torch_device.type == "cuda":
            gc.collect()  # pages and graphs of the old engine free their memory for the next one's
            torch.cuda.empty_cache()

    def _launched(self) -> int:
        return sum(len(recorder.steps) for recorder in self.recorders.values())
