"""The stage worker: forms batches of rows, and decodes one chunk of each."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from omni.device import Device, Graph, Launch, PackedSpan, Uploader
from omni.device.graphs import CapturedGraphs
from omni.stage import Listeners, Open, returned_tensor, rows_or_default, together
from omni_frames.request import FrameRequest
from omni_frames.store import MAX_IN_FLIGHT, SampleBatch
from omni_frames.worker import FrameWorker
from omni_vocoder.chunks import ChunkShape, ChunkSizes
from omni_vocoder.model import StateT, VocoderModel
from omni_vocoder.options import VocoderOptions


@dataclass(slots=True, eq=False)
class VocoderRequest(FrameRequest):
    """A request from `Open` to its end. passed: number of batches without the request while its next chunk was ready."""

    passed: int = 0


_FIRST_SLACK = 0.1
"""A request without a first chunk counts as having this slack, in seconds."""
_PLENTY = 1.0
"""Seconds of slack from which a chunk waits for those of other streams: a step of many rows takes less time than several of few."""
_MOST_PASSED = 8
"""Number of other batches after which a chunk is decoded regardless of its slack, so that none starves."""


class VocoderWorker(FrameWorker[VocoderRequest]):
    """Runs one vocoder."""

    def __init__(
        self,
        name: str,
        device: Device,
        model: VocoderModel[Any],
        options: VocoderOptions,
        priority: int = 0,
        listeners: Listeners | None = None,
    ) -> None:
        """listeners: as in `StageContext`; their slack determines sizes of chunks, and which come first."""
        rows = rows_or_default(options.max_num_seqs)
        sizes = ChunkSizes.of(options, model, grow=listeners is not None)
        most = rows * max(model.samples(*shape) for shape in sizes.shapes)
        super().__init__(name, device, model, rows=rows, capacity=sizes.capacity, most_samples=most, priority=priority)
        self._model = model
        self._sizes = sizes
        self._listeners = listeners
        self._null_row = rows  # pads a batch, with frame 0 of the ring
        self._state = model.new_state(rows + 1)
        self._upload = Uploader(device, self.stream, rows * (1 + sizes.largest), 2 * MAX_IN_FLIGHT)
        self._graphs = CapturedGraphs[ChunkShape, Graph](name)

    def capture(self, sizes: Iterable[int]) -> None:
        """Captures chunks of these numbers of rows. At start. sizes: preferably the largest first."""
        for size in sizes:
            for chunk in sorted(self._sizes.shapes, reverse=True):
                # The layout of the upload in `prepare`.
                rows_B, indices_BN = PackedSpan(0, (size,)), PackedSpan(size, (size, chunk.frames))
                views = self._upload.view(rows_B), self._upload.view(indices_BN)
                self.device.launch(self.stream, set_null_rows, *views, self._null_row)
                name = f"{self.stream.name}-{chunk.frames}-frames-{size}"
                graph = self.device.capture(self.stream, name, [self._decode(chunk, *views)])
                self._graphs.add(chunk, size, graph)

    def open(self, message: Open) -> VocoderRequest:
        return VocoderRequest(message.request_id, set(message.inputs), message.order)

    def finished(self, request: VocoderRequest) -> bool:
        return request.ended and not request.in_flight and not self._sizes.next_chunk(request)

    def run(self) -> bool:
        moved = False
        while self._upload.ready and self.samples.ready and (next_batch := self._next_batch()):
            chunk, batch = next_batch
            numbers = self._numbers(chunk, batch) if self.device.launch_observer is not None else {}
            with self.device.host_span(self.stream, "decode_chunks", **numbers):
                launched = self.run_batch(batch, "decoding a chunk", partial(self.prepare, batch, chunk))
            if launched:
                for request in batch:
                    frames = min(chunk.frames, request.buffered)
                    request.forget(frames, self._sizes.capacity)
                    request.done += frames
                    self.totals["frames"] += frames
                self.totals["steps"] += 1
            moved = True
        return moved

    def _numbers(self, chunk: ChunkShape, batch: Sequence[VocoderRequest]) -> dict[str, int]:
        """Of a batch, for the timeline; with the least slack of its listeners, in milliseconds, if they are playing."""
        numbers = {"rows": len(batch), "frames": chunk.frames, "first": int(chunk.first)}
        if chunk.first or self._listeners is None:
            return numbers
        least = min(self._listeners.slack(request.id) for request in batch)
        return numbers if least == math.inf else {**numbers, "slack_ms": round(1000 * least)}

    def prepare(
        self, requests: Sequence[VocoderRequest], chunk: ChunkShape
    ) -> Callable[[], SampleBatch[VocoderRequest]]:
        """Enqueues the inputs of each request's next chunk, from its ring. Can be retried after a failure. Returns a function that
        enqueues the decoding, which advances the rows' state, and the copy of the samples. Call it before the next preparation.

        A last chunk is padded with its last frame, so that it runs in the batch of the others. The samples before the
        padding do not depend on it, as they do not depend on the division into chunks; those after are not read.
        """
        count = len(requests)
        frames = [min(chunk.frames, request.buffered) for request in requests]
        size, graph = self._graphs.find(chunk, count)
        rows, indices = np.full(size, self._null_row), np.zeros((size, chunk.frames), np.int64)
        rows[:count] = [request.row for request in requests]
        for index, (request, own) in enumerate(zip(requests, frames, strict=True)):
            indices[index, :own] = self.store.indices(request, 0, own)
            indices[index, own:] = indices[index, own - 1]
        rows_B, indices_BN = self._upload.send([rows, indices])
        if chunk.first:
            self.device.launch(self.stream, reset_rows, self._model, self._state, rows_B)

        def launch() -> SampleBatch[VocoderRequest]:
            self.device.replay_or_enqueue(self.stream, graph, [self._decode(chunk, rows_B, indices_BN)])
            samples = [self._model.samples(own, chunk.first) for own in frames]
            return self.samples.download(requests, self._model.samples(*chunk), samples)

        return launch

    def _next_batch(self) -> tuple[ChunkShape, list[VocoderRequest]] | None:
        """The most urgent rows whose next chunks have the same shape. The other ready rows count the batch as `passed`."""
        ready: dict[VocoderRequest, tuple[ChunkShape, float]] = {}
        smallest = min(self._sizes.first, self._sizes.later[0])
        for request in self.rows.owners:
            if request.paused or request.in_flight or (request.buffered < smallest and not request.ended):
                continue
            slack = self._listeners.slack(request.id) if self._listeners is not None and request.done else math.inf
            if (chunk := self._sizes.next_chunk(request, slack)) is not None:
                ready[request] = chunk, _urgency(request, chunk, slack)
        if not ready or self._wait_for_others(ready):
            return None
        groups: dict[ChunkShape, list[VocoderRequest]] = {}
        for request in together(list(ready)):
            groups.setdefault(ready[request][0], []).append(request)
        batch = min(groups.items(), key=lambda group: min(ready[request][1] for request in group[1]))
        for request in ready:
            request.passed += 1
        for request in batch[1]:
            request.passed = 0
        return batch

    def _wait_for_others(self, ready: Mapping[VocoderRequest, tuple[ChunkShape, float]]) -> bool:
        """Whether these chunks can wait: no listener needs one soon, and chunks of other streams will be ready in the meantime. A
        chunk waits at most until its stream could fill another one. The engine calls the worker again while a request is open."""
        for request, (chunk, slack) in ready.items():
            if not _PLENTY < slack < math.inf or request.ended or request.buffered >= 2 * chunk.frames:
                return False
        return any(
            request.done and not request.paused and not request.ended and request not in ready
            for request in self.rows.owners
        )

    def _decode(self, chunk: ChunkShape, rows_B: Tensor, indices_BN: Tensor) -> Launch:
        wav_BS = self.samples.buffer(rows_B.shape[0], self._model.samples(*chunk))
        ring_RCG = self.store.ring_RCG
        return Launch.of(decode_frames, self._model, self._state, ring_RCG, indices_BN, rows_B, chunk.first, wav_BS)


def _urgency(request: VocoderRequest, chunk: ChunkShape, slack: float) -> float:
    """The order of ready chunks; the lowest is decoded first. Requests without a first chunk come after those of listeners close to
    an underrun, and before all others."""
    if request.passed >= _MOST_PASSED:
        return -math.inf
    return _FIRST_SLACK if chunk.first else slack


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
    hint = "see VocoderModel.samples"
    wav_BS.copy_(returned_tensor(decoded, "decode", code=model.decode, shape=wav_BS.shape, hint=hint))
