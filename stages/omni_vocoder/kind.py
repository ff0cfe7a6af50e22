"""Stage kind `"vocoder"`: how a stage is loaded, and the largest chunks that it is measured on."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import torch

from omni.device import COMPLETED, PhaseCategory, declare_categories
from omni.payload import Payload
from omni.sampling import SamplingParams
from omni.stage import Ended, Feed, Inbound, MeasuredRowStage, Open, StageContext, build_model, dry_run
from omni_frames.request import CodeFrames
from omni_vocoder.chunks import ChunkSizes
from omni_vocoder.model import VocoderModel
from omni_vocoder.options import VocoderOptions
from omni_vocoder.worker import VocoderWorker

CATEGORIES = {
    "set_null_rows": PhaseCategory.PREPROCESS,
    "reset_rows": PhaseCategory.PREPROCESS,
    "decode_frames": PhaseCategory.FORWARD,
}
_SOURCE = "frontend"

declare_categories(CATEGORIES)


class LoadedVocoder(MeasuredRowStage[VocoderWorker]):
    memory_options = ("max_num_seqs", "first_chunk_frames", "chunk_frames")

    def __init__(self, context: StageContext, model: VocoderModel[Any]) -> None:
        options, stage, device = context.options, context.stage, context.device
        assert isinstance(options, VocoderOptions)
        self._options = options
        self._model = model

        def new_worker(rows: int) -> VocoderWorker:
            own = msgspec.structs.replace(options, max_num_seqs=rows, graph_batch_sizes=None)
            return VocoderWorker(stage.name, device, model, own, priority=stage.priority, listeners=context.listeners)

        chosen, sizes = options.max_num_seqs, options.graph_batch_sizes
        super().__init__(context, model, new_worker, chosen_rows=chosen, graph_batch_sizes=sizes)

    def largest_batches(self) -> Callable[[VocoderWorker], None]:
        return partial(dry_run, self._context.stage.name, device=self._context.device, messages=self._all_rows())

    def _all_rows(self) -> list[Inbound]:
        """One request per row, long enough for two chunks: rows in step share their chunks."""
        sizes = ChunkSizes.of(self._options, self._model)
        count = sizes.first + sizes.largest
        codes_NG = torch.zeros((count, self._model.num_groups), dtype=torch.int64, device="cpu")
        payload = Payload(CodeFrames(count=count), {"codes": codes_NG})
        messages: list[Inbound] = []
        for request in map(str, range(self.rows)):
            messages.append(Open(request, SamplingParams(), frozenset({_SOURCE})))
            messages += Feed(request, payload, COMPLETED), Ended(request, _SOURCE)
        return messages


class VocoderStageKind:
    """Codes in, streaming waveform out.

    `Stage.model` names a function `(StageContext) -> VocoderModel` that builds the model on the device, weights loaded.
    """

    name = "vocoder"
    options = VocoderOptions

    def load(self, context: StageContext) -> LoadedVocoder:
        return LoadedVocoder(context, build_model(context, VocoderModel))  # type: ignore[type-abstract]
