"""Stage kind `"encoder"`: how a stage is loaded, and the largest batch that it is measured on."""

from collections.abc import Callable
from functools import partial

from omni.device import COMPLETED, PhaseCategory, declare_categories
from omni.payload import Payload
from omni.sampling import SamplingParams
from omni.stage import Ended, Feed, Inbound, MeasuredStage, Open, StageContext, build_model, dry_run
from omni_encoder.inputs import MediaItem
from omni_encoder.model import EncoderModel
from omni_encoder.options import EncoderOptions
from omni_encoder.worker import EncoderWorker

CATEGORIES = {
    "copy_features": PhaseCategory.COPIES,
    "clear_rest": PhaseCategory.PREPROCESS,
    "encode_batch": PhaseCategory.FORWARD,
    "take_outputs": PhaseCategory.POSTPROCESS,
}
_REQUEST, _SOURCE = "largest batch", "frontend"

declare_categories(CATEGORIES)


class LoadedEncoder(MeasuredStage[EncoderWorker]):
    """Memory for outputs, cached or still needed, counts as fixed."""

    memory_options = ("max_batch_length", "max_batch_items", "graph_lengths")

    def __init__(self, context: StageContext, model: EncoderModel) -> None:
        options, stage, device = context.options, context.stage, context.device
        assert isinstance(options, EncoderOptions)
        # Also without graphs where batches could be captured, for the same results to the bit.
        pads = (context.graphs or device.captures) and model.padded_length(()) is not None
        lengths = options.captured_lengths if pads else ()
        new_worker = partial(
            EncoderWorker, stage.name, device, model, options, priority=stage.priority, lengths=lengths
        )
        self._options = options
        self._model = model
        super().__init__(context, model, new_worker, lengths, options.cache_bytes + options.held_bytes)

    def largest_batches(self) -> Callable[[EncoderWorker], None]:
        return partial(dry_run, self._context.stage.name, device=self._context.device, messages=self._largest_batch())

    def _largest_batch(self) -> list[Inbound]:
        feeds: list[Inbound] = []
        left = self._options.max_batch_length
        while left > 0 and len(feeds) < self._options.max_batch_items:
            sample = self._model.largest_item(left)
            item = MediaItem(index=len(feeds), key=str(len(feeds)), batch_key=0, length=sample.length)
            feeds.append(Feed(_REQUEST, Payload(item, sample.features), COMPLETED))
            left -= sample.length
        return [Open(_REQUEST, SamplingParams(), frozenset({_SOURCE})), *feeds, Ended(_REQUEST, _SOURCE)]


class EncoderStageKind:
    """Towers that encode media as embeddings, in batches, each content once.

    `Stage.model` names a function `(StageContext) -> EncoderModel` that builds the model on the device, weights loaded.
    """

    name = "encoder"
    options = EncoderOptions

    def load(self, context: StageContext) -> LoadedEncoder:
        return LoadedEncoder(context, build_model(context, EncoderModel))  # type: ignore[type-abstract]
