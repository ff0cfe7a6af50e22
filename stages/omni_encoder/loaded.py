"""An encoder stage that is loaded: the largest batch it may be given, and its worker."""

from omni.device import COMPLETED, AllocationCount
from omni.payload import Payload
from omni.sampling_params import SamplingParams
from omni.stage import Ended, Feed, Footprint, Inbound, Open, StageContext, capture_progress, module_bytes, rehearse
from omni_encoder.inputs import MediaItem
from omni_encoder.model import EncoderModel
from omni_encoder.options import EncoderOptions
from omni_encoder.worker import EncoderWorker

_REQUEST, _SOURCE = "largest batch", "frontend"


class LoadedEncoder:
    """What outputs may take, cached or still needed, counts as fixed. What else outlives a batch is allocated with the worker."""

    def __init__(self, context: StageContext, model: EncoderModel) -> None:
        assert isinstance(context.options, EncoderOptions)
        self._context = context
        self._options = context.options
        self._model = model
        captures = context.graphs and model.padded_length(()) is not None
        self._lengths = self._options.captured_lengths if captures else ()
        count = AllocationCount(context.device.torch_device)
        with count:
            self._worker = self._new_worker()
        outputs = self._options.cache_bytes + self._options.held_bytes
        self.footprint = Footprint(weights=module_bytes(model), fixed=outputs + count.live)

    def measure(self) -> int:
        name, device, messages = self._context.stage.name, self._context.device, self._largest_batch()

        def run_largest_batches() -> None:
            rehearse(name, self._worker, device, messages)
            self._worker.capture(self._lengths[:1])  # the others fit where it was

        peak = device.measure_peak(run_largest_batches)
        # A new worker counts from 0. The old one's memory goes first: there may not be room for both.
        self._worker.close()
        del self._worker
        self._worker = self._new_worker()
        return peak

    def start(self, pages: int) -> EncoderWorker:
        if self._lengths:
            self._worker.capture(capture_progress(self._context.stage.name, self._lengths))
        return self._worker

    def _new_worker(self) -> EncoderWorker:
        stage, device = self._context.stage, self._context.device
        return EncoderWorker(stage.name, device, self._model, self._options, stage.priority, self._lengths)

    def _largest_batch(self) -> list[Inbound]:
        """A request whose items fill one batch."""
        feeds: list[Inbound] = []
        left = self._options.max_batch_length
        while left > 0 and len(feeds) < self._options.max_batch_items:
            sample = self._model.largest_item(left)
            item = MediaItem(index=len(feeds), key=str(len(feeds)), batch_key=0, length=sample.length)
            feeds.append(Feed(_REQUEST, Payload(item, sample.features), COMPLETED))
            left -= sample.length
        return [Open(_REQUEST, SamplingParams(), frozenset({_SOURCE})), *feeds, Ended(_REQUEST, _SOURCE)]
