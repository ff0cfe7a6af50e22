"""The stage worker: forms batches of rows to decode."""

from collections.abc import Iterable
from functools import partial

from omni.device import Device
from omni.stage import Open, together
from omni_frames import FrameWorker
from omni_vocoder.decoder import Decoder
from omni_vocoder.model import StateT, VocoderModel
from omni_vocoder.options import VocoderOptions
from omni_vocoder.request import ChunkSizes, VocoderRequest


class VocoderWorker(FrameWorker[VocoderRequest]):
    """Runs one vocoder."""

    def __init__(
        self, name: str, device: Device, model: VocoderModel[StateT], options: VocoderOptions, priority: int = 0
    ) -> None:
        rows, sizes = options.max_num_seqs, ChunkSizes.of(options, model)
        most = rows * max(model.samples(sizes.first, True), model.samples(sizes.later, False))
        super().__init__(name, device, model, rows, sizes.capacity, most, priority)
        self._sizes = sizes
        self._decoder = Decoder(device, self.stream, model, self.store, self.samples, rows, sizes)

    def capture(self, sizes: Iterable[int]) -> None:
        """Captures chunks of these numbers of rows. At start."""
        self._decoder.capture(sizes)

    def open(self, message: Open) -> VocoderRequest:
        return VocoderRequest(message.request_id, set(message.inputs), message.rank)

    def over(self, request: VocoderRequest) -> bool:
        return request.finished(self._sizes)

    def run(self) -> bool:
        moved = False
        while self._decoder.ready and (batch := self._next_batch()):
            self._decode(batch)
            moved = True
        return moved

    def _next_batch(self) -> list[VocoderRequest]:
        """Rows whose next chunk has the same shape. First chunks go before later ones: the user waits for them."""
        groups: dict[tuple[bool, int], list[VocoderRequest]] = {}
        ready = [request for request in self.rows.owners if not request.paused and request.next_chunk(self._sizes)]
        for request in together(ready):
            groups.setdefault((request.started, request.next_chunk(self._sizes)), []).append(request)
        return groups[min(groups, key=lambda key: key[0])] if groups else []

    def _decode(self, batch: list[VocoderRequest]) -> None:
        frames, first = batch[0].next_chunk(self._sizes), not batch[0].started
        if self.run_batch(batch, "decoding a chunk", partial(self._decoder.prepare, batch, frames, first)):
            for request in batch:
                request.consume(frames, self._sizes.capacity)
            self.totals["steps"] += 1
            self.totals["frames"] += frames * len(batch)
