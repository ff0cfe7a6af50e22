"""Decodes one chunk of several rows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from omni.device import Device, Graph, Launch, Span, Stream, Uploader
from omni.graphs import CapturedGraphs
from omni_frames import MAX_IN_FLIGHT, FrameStore, SampleBatch, SampleRing
from omni_vocoder.model import StateT, VocoderModel
from omni_vocoder.request import ChunkSizes, VocoderRequest


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """The properties that chunks of one step share: their frames, and whether they are the first of their requests."""

    frames: int
    first: bool


class Decoder:
    """Owns the model's state. It does no scheduling."""

    def __init__(
        self,
        device: Device,
        stream: Stream,
        model: VocoderModel[StateT],
        store: FrameStore,
        samples: SampleRing,
        rows: int,
        sizes: ChunkSizes,
    ) -> None:
        self._null_row = rows  # pads a batch, with frame 0 of the ring
        self._device = device
        self._stream = stream
        self._model = model
        self._store = store
        self._samples = samples
        self._state = model.new_state(rows + 1)
        self._upload = Uploader(device, stream, rows * (1 + sizes.largest), 2 * MAX_IN_FLIGHT)
        self._chunks = (ChunkShape(sizes.first, True), ChunkShape(sizes.later, False))
        others = "chunks of other sizes, at the end of requests,"
        self._graphs = CapturedGraphs[ChunkShape, list[Graph]](stream.name, others=others)

    def capture(self, sizes: Iterable[int]) -> None:
        """Captures chunks of these numbers of rows. At start, before there are requests. sizes: preferably the largest
        first."""
        for size in sizes:
            for chunk in self._chunks:
                # The layout of the upload in `prepare`.
                rows_B, places_BN = Span(0, (size,)), Span(size, (size, chunk.frames))
                views = self._upload.view(rows_B), self._upload.view(places_BN)
                self._device.launch(self._stream, set_null_rows, *views, self._null_row)
                name = f"{self._stream.name}-{chunk.frames}-frames-{size}"
                decodes = [[self._decode(chunk, *views, turn)] for turn in range(MAX_IN_FLIGHT)]
                graphs = [self._device.capture(self._stream, name, decode) for decode in decodes]
                self._graphs.add(chunk, size, graphs)

    @property
    def ready(self) -> bool:
        """Whether a chunk may be prepared and launched now."""
        return self._upload.ready and self._samples.ready

    def prepare(
        self, requests: Sequence[VocoderRequest], frames: int, first: bool
    ) -> Callable[[], SampleBatch[VocoderRequest]]:
        """Enqueues the inputs of each request's next chunk: `frames` frames from its ring. Can be retried after a
        failure. Changes no request.

        Returns a function that enqueues the decoding, which advances the rows' state, and the copy of the samples. Call
        it before the next preparation.
        """
        count, chunk = len(requests), ChunkShape(frames, first)
        captured = self._graphs.find(chunk, count)
        size = captured.size if captured is not None else count
        rows, places = np.full(size, self._null_row), np.zeros((size, frames), np.int64)
        rows[:count] = [request.row for request in requests]
        places[:count] = [self._store.places(request, 0, frames) for request in requests]
        rows_B, places_BN = self._upload.send([rows, places])
        if first:
            self._device.launch(self._stream, reset_rows, self._model, self._state, rows_B)

        def launch() -> SampleBatch[VocoderRequest]:
            turn = self._samples.turn
            if captured is not None:
                self._device.replay(self._stream, captured.graph[turn])
            else:
                self._device.enqueue(self._stream, [self._decode(chunk, rows_B, places_BN, turn)])
            return self._samples.send(requests, self._model.samples(chunk.frames, chunk.first))

        return launch

    def _decode(self, chunk: ChunkShape, rows_B: Tensor, places_BN: Tensor, turn: int) -> Launch:
        wav_BS = self._samples.buffer(turn, rows_B.shape[0], self._model.samples(chunk.frames, chunk.first))
        ring_RCG = self._store.ring_RCG
        return Launch.of(decode_frames, self._model, self._state, ring_RCG, places_BN, rows_B, chunk.first, wav_BS)


def set_null_rows(rows_B: Tensor, places_BN: Tensor, null_row: int) -> None:
    """Writes the inputs of a batch of null rows."""
    rows_B.fill_(null_row)
    places_BN.zero_()


def reset_rows(model: VocoderModel[StateT], state: StateT, rows_B: Tensor) -> None:
    model.reset(state, rows_B)


def decode_frames(
    model: VocoderModel[StateT],
    state: StateT,
    ring_RCG: Tensor,
    places_BN: Tensor,
    rows_B: Tensor,
    first: bool,
    wav_BS: Tensor,
) -> None:
    """Writes the samples of a chunk of each row of a batch, and advances the rows' state.

    B rows of the batch, N frames of a chunk, S samples of one. ring_RCG: int64, waiting frames, `C` per row. places_BN:
    int64, places of the chunks' frames in the ring viewed as `[R * C, G]`. rows_B: int64, the rows of `state`.
    first: whether the chunks are the first of their requests. wav_BS: fp32, the output. Raises ValueError if the model
    returns another shape.
    """
    codes_BNG = ring_RCG.flatten(0, 1).index_select(0, places_BN.flatten()).unflatten(0, places_BN.shape)
    decoded_BS = model.decode(codes_BNG, state, rows_B, first)
    if decoded_BS.shape != wav_BS.shape:
        raise ValueError(f"the model gave samples {tuple(decoded_BS.shape)}, promised {tuple(wav_BS.shape)}")
    wav_BS.copy_(decoded_BS)
