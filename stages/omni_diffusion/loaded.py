"""A diffusion stage that is loaded: the largest batches it may be given, and its worker."""

from typing import Any

from omni.batch_sizes import captured_sizes
from omni.device import AllocationCount
from omni.stage import Footprint, StageContext, capture_progress, module_bytes
from omni_diffusion.model import DiffusionModel
from omni_diffusion.options import DiffusionOptions
from omni_diffusion.worker import DiffusionWorker


class LoadedDiffusion:
    """Everything that outlives a batch is allocated here, with the worker."""

    def __init__(self, context: StageContext, model: DiffusionModel[Any]) -> None:
        assert isinstance(context.options, DiffusionOptions)
        self._context = context
        self._options = context.options
        self.model = model
        count = AllocationCount(context.device.torch_device)
        with count:
            self._worker = self._new_worker()
        self.footprint = Footprint(weights=module_bytes(model), fixed=count.live)

    def measure(self) -> int:
        def run_largest_batches() -> None:
            self._worker.run_largest()
            if self._context.graphs:
                self._worker.capture(self._captured_sizes()[:1])  # the others fit where it was

        peak = self._context.device.measure_peak(run_largest_batches)
        # A new worker has no graphs. The old one's memory goes first: there may not be room for both.
        self._worker.close()
        del self._worker
        self._worker = self._new_worker()
        return peak

    def start(self, pages: int) -> DiffusionWorker:
        if self._context.graphs:
            self._worker.capture(capture_progress(self._context.stage.name, self._captured_sizes()))
        return self._worker

    def _captured_sizes(self) -> tuple[int, ...]:
        return captured_sizes(self._options.graph_batch_sizes, self._options.max_num_seqs)

    def _new_worker(self) -> DiffusionWorker:
        stage = self._context.stage
        return DiffusionWorker(stage.name, self._context.device, self.model, self._options, stage.priority)
