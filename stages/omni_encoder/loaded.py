"""An encoder stage that is loaded: the largest batch it may be given, and its worker."""

from omni.device import COMPLETED
from omni.payload import Payload
from omni.sampling_params import SamplingParams
from omni.stage import Ended, Feed, Footprint, Inbound, Open, StageContext, module_bytes, rehearse
from omni_encoder.inputs import MediaItem
from omni_encoder.model import EncoderModel
from omni_encoder.options import EncoderOptions
from omni_encoder.worker import EncoderWorker

_REQUEST, _SOURCE = "largest batch", "frontend"


class LoadedEncoder:
    """What outputs may take, cached or still needed, counts as fixed."""

    def __init__(self, context: StageContext, model: EncoderModel) -> None:
        assert isinstance(context.options, EncoderOptions)
        self._context = context
        self._options = context.options
        self._model = model
        self.footprint = Footprint(
            weights=module_bytes(model), fixed=self._options.cache_bytes + self._options.held_bytes
        )

    def measure(self) -> int:
        name, device, messages = self._context.stage.name, self._context.device, self._largest_batch()
        worker = self.start(0)
        try:
            return device.measure_peak(lambda: rehearse(name, worker, device, messages))
        finally:
            worker.close()

    def start(self, pages: int) -> EncoderWorker:
        stage = self._context.stage
        return EncoderWorker(stage.name, self._context.device, self._model, self._options, stage.priority)

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
