"""A loaded diffusion stage, and its worker."""

from collections.abc import Callable
from functools import partial
from typing import Any

from omni.graphs import captured_sizes
from omni.stage import MeasuredStage, StageContext
from omni_diffusion.model import DiffusionModel
from omni_diffusion.options import DiffusionOptions
from omni_diffusion.worker import DiffusionWorker


class LoadedDiffusion(MeasuredStage[DiffusionWorker]):
    """model: the stage's model."""

    memory_options = ("max_num_seqs", "chunk_blocks", "blocks_before", "blocks_after")

    def __init__(self, context: StageContext, model: DiffusionModel[Any]) -> None:
        options, stage, device = context.options, context.stage, context.device
        assert isinstance(options, DiffusionOptions)
        new_worker = partial(DiffusionWorker, stage.name, device, model, options, stage.priority)
        self.model = model
        super().__init__(context, model, new_worker, captured_sizes(options.graph_batch_sizes, options.max_num_seqs))

    def largest_batches(self) -> Callable[[DiffusionWorker], None]:
        return DiffusionWorker.run_largest
