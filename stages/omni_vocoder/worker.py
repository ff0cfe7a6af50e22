"""The stage worker: forms batches of rows, and decodes one chunk of each."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from omni.device import Device, Graph, Launch, PackedSpan, Uploader
from omni.device.graphs import CapturedGraphs
from omni.stage import Open, returned_tensor, rows_or_default, together
from omni_frames.request import FrameRequest
from omni_frames.store import MAX_IN_FLIGHT, SampleBatch
from omni_frames.worker import FrameWorker
from omni_vocoder.model import StateT, VocoderModel
from omni_vocoder.options import VocoderOptions


@dataclass(frozen=True, slots=True)
class ChunkSizes:
    """Frames of a request's first chunk and of each later one. fewest: the minimum of the model's first chunk."""

    first: int
    later: int
    fewest: int

    @classmethod
    def of(cls, options: VocoderOptions, model: VocoderModel[StateT]) -> "ChunkSizes":
        fewest = model.min_first_frames
        return cls(max(options.first_chunk_frames, fewest), options.chunk_frames, fewest)

    @property
    def largest(self) -> int:
        return max(self.first, self.later)

    @property
    def capacity(self) -> int:
        """Waiting frames of a request on the device, copied in advance to free the producer's memory."""
        return 4 * self.largest


class ChunkShape(NamedTuple):
    """The properties that chunks of one step share: their frames, and whether they are the first of their requests. A request's
    last chunk may have fewer frames, and is padded to the shape's."""

    frames: int
    first: bool


@dataclass(slots=True, eq=False)
class VocoderRequest(FrameRequest):
    """A request from `Open` to its end."""

    def next_chunk(self, sizes: ChunkSizes) -> ChunkShape | None:
        """The next chunk; None while its frames have not arrived."""
        wanted, fewest = (sizes.later, 1) if self.done else (sizes.first, sizes.fewest)
        if self.in_flight or self.buffered < (fewest if self.ended else wanted):
            return None
        return ChunkShape(wanted, not self.done)


class VocoderWorker(FrameWorker[VocoderRequest]):
    """Runs one vocoder."""

    def __init__(
        self, name: str, device: Device, model: VocoderModel[Any], options: VocoderOptions, priority: int = 0
    ) -> None:
        rows, sizes = rows_or_default(options.max_num_seqs), ChunkSizes.of(options, model)
        most = rows * max(model.samples(sizes.first, True), model.samples(sizes.later, False))
        super().__init__(name, device, model, rows=rows, capacity=sizes.capacity, most_samples=most, priority=priority)
        self._model = model
        self._sizes = sizes
        self._null_row = rows  # pads a batch, with frame 0 of the ring
        self._state = model.new_state(rows + 1)
        self._upload = Uploader(device, self.stream, rows * (1 + sizes.largest), 2 * MAX_IN_FLIGHT)
        self._graphs = CapturedGraphs[ChunkShape, list[Graph]](name)

    def capture(self, sizes: Iterable[int]) -> None:
        """Captures chunks of these numbers of rows. At start. sizes: preferably the largest first."""
        for size in sizes:
            for chunk in (ChunkShape(self._sizes.first, True), ChunkShape(self._sizes.later, False)):
                # The layout of the upload in `prepare`.
                rows_B, indices_BN = PackedSpan(0, (size,)), PackedSpan(size, (size, chunk.frames))
                views = self._upload.view(rows_B), self._upload.view(indices_BN)
                self.device.launch(self.stream, set_null_rows, *views, self._null_row)
                name = f"{self.stream.name}-{chunk.frames}-frames-{size}"
                decodes = [[self._decode(chunk, *views, slot)] for slot in range(MAX_IN_FLIGHT)]
                graphs = [self.device.capture(self.stream, name, decode) for decode in decodes]
                self._graphs.add(chunk, size, graphs)

    def open(self, message: Open) -> VocoderRequest:
        return VocoderRequest(message.request_id, set(message.inputs), message.rank)

    def over(self, request: VocoderRequest) -> bool:
        return request.ended and not request.in_flight and not request.next_chunk(self._sizes)

    def run(self) -> bool:
        moved = False
        while self._upload.ready and self.samples.ready and (next_batch := self._next_batch()):
            chunk, batch = next_batch
            if self.run_batch(batch, "decoding a chunk", partial(self.prepare, batch, chunk)):
                for request in batch:
                    frames = min(chunk.frames, request.buffered)
                    request.forget(frames, self._sizes.capacity)
                    request.done += frames
                    self.totals["frames"] += frames
                self.totals["steps"] += 1
            moved = True
        return moved

    def prepare(
        self, requests: Sequence[VocoderRequest], chunk: ChunkShape
    ) -> Callable[[], SampleBatch[VocoderRequest]]:
        """Enqueues the inputs of each request's next chunk, from its ring. Can be retried after a failure. Returns a function that
        enqueues the decoding, which advances the rows' state, and the copy of the samples. Call it before the next preparation.

        A last chunk is padded with its last frame, so that it runs in the batch of the others. The samples before the
        padding do not depend on it, as they do not depend on the division into chunks; those behind are not read.
        """
        count = len(requests)
        frames = [min(chunk.frames, request.buffered) for request in requests]
        size, graphs = self._graphs.find(chunk, count)
        rows, indices = np.full(size, self._null_row), np.zeros((size, chunk.frames), np.int64)
        rows[:count] = [request.row for request in requests]
        for index, (request, own) in enumerate(zip(requests, frames, strict=True)):
            indices[index, :own] = self.store.indices(request, 0, own)
            indices[index, own:] = indices[index, own - 1]
        rows_B, indices_BN = self._upload.send([rows, indices])
        if chunk.first:
            self.device.launch(self.stream, reset_rows, self._model, self._state, rows_B)

        def launch() -> SampleBatch[VocoderRequest]:
            slot = self.samples.next_slot
            graph = graphs[slot] if graphs is not None else None
            self.device.replay_or_enqueue(self.stream, graph, [self._decode(chunk, rows_B, indices_BN, slot)])
            samples = [self._model.samples(own, chunk.first) for own in frames]
            return self.samples.download(requests, self._model.samples(*chunk), samples)

        return launch

    def _next_batch(self) -> tuple[ChunkShape, list[VocoderRequest]] | None:
        """Rows whose next chunk has the same shape. First chunks go before later ones: the user waits for them."""
        waiting = (request for request in self.rows.owners if not request.paused)
        chunks = {request: chunk for request in waiting if (chunk := request.next_chunk(self._sizes)) is not None}
        groups: dict[ChunkShape, list[VocoderRequest]] = {}
        for request in together(list(chunks)):
            groups.setdefault(chunks[request], []).append(request)
        return max(groups.items(), key=lambda group: group[0].first, default=None)

    def _decode(self, chunk: ChunkShape, rows_B: Tensor, indices_BN: Tensor, slot: int) -> Launch:
        wav_BS = self.samples.buffer(slot, rows_B.shape[0], self._model.samples(*chunk))
        ring_RCG = self.store.ring_RCG
        return Launch.of(decode_frames, self._model, self._state, ring_RCG, indices_BN, rows_B, chunk.first, wav_BS)


def set_null_rows(rows_B: Tensor, indices_BN: Tensor, null_row: int) -> None:
    rows_B.fill_(null_row)
    indices_BN.zero_()


def reset_rows(model: VocoderModel[StateT], state: StateT, rows_B: Tensor) -> None:
    model.reset(state, rows_B)


def decode_frames(
    model: VocoderModel[StateT],
    state: StateT,
    ring_RCG: Tensor,
    indices_BN: Tensor,
    rows_B: Tensor,
    first: bool,
    wav_BS: Tensor,
) -> None:
    """Writes the samples of a chunk of each row of a batch, and advances the rows' state. Raises ReturnedError for another shape.

    B rows of the batch, N frames of a chunk, S samples of one. ring_RCG: int64, waiting frames, `C` per row. indices_BN: int64,
    indices of the chunks' frames in the ring viewed as `[R * C, G]`. rows_B: int64, of `state`. wav_BS: fp32, the output.
    """
    codes_BNG = ring_RCG.flatten(0, 1).index_select(0, indices_BN.flatten()).unflatten(0, indices_BN.shape)
    decoded = model.decode(codes_BNG, state, rows_B, first)
    wav_BS.copy_(returned_tensor(decoded, "decode", wav_BS.shape, model.decode, "see VocoderModel.samples"))
