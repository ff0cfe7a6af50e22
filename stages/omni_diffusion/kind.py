"""Stage kind `"diffusion"`: how a stage is loaded."""

from collections.abc import Callable
from typing import Any

import msgspec

from omni.device import PhaseCategory, declare_categories
from omni.stage import MeasuredRowStage, StageContext, build_model
from omni_diffusion.model import DiffusionModel
from omni_diffusion.options import DiffusionOptions
from omni_diffusion.worker import DiffusionWorker

CATEGORIES = {
    **dict.fromkeys(("begin_windows", "set_null_windows", "set_null_steps", "set_null_part"), PhaseCategory.PREPROCESS),
    "denoise_rows": PhaseCategory.FORWARD,
    "render_part": PhaseCategory.POSTPROCESS,
}

declare_categories(CATEGORIES)


class LoadedDiffusion(MeasuredRowStage[DiffusionWorker]):
    memory_options = ("max_num_seqs", "chunk_blocks", "blocks_before", "blocks_after")

    def __init__(self, context: StageContext, model: DiffusionModel[Any]) -> None:
        options, stage, device = context.options, context.stage, context.device
        assert isinstance(options, DiffusionOptions)
        self.model = model

        def new_worker(rows: int) -> DiffusionWorker:
            own = msgspec.structs.replace(options, max_num_seqs=rows, graph_batch_sizes=None)
            return DiffusionWorker(stage.name, device, model, own, priority=stage.priority)

        chosen, sizes = options.max_num_seqs, options.graph_batch_sizes
        super().__init__(context, model, new_worker, chosen_rows=chosen, graph_batch_sizes=sizes)

    def largest_batches(self) -> Callable[[DiffusionWorker], None]:
        return DiffusionWorker.run_largest


class DiffusionStageKind:
    """Codes in, streaming waveform out, by iterative denoising.

    `Stage.model` names a function `(StageContext) -> DiffusionModel` that builds the model on the device, weights loaded, with
    `num_steps` and `guidance` of the context's options where they are set.
    """

    name = "diffusion"
    options = DiffusionOptions

    def load(self, context: StageContext) -> LoadedDiffusion:
        return LoadedDiffusion(context, build_model(context, DiffusionModel))  # type: ignore[type-abstract]
