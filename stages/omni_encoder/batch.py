"""Sends the inputs of batches to the device, piece by piece, and launches their encoding.

| buffer | written by | read by | freed by |
|---|---|---|---|
| pinned slot | host, in `FeatureCopy.fill` | the H2D copy of a piece | the event after that copy |
| features on the host | front end | host, in `FeatureCopy.fill` | the launch of the batch, until which its jobs are kept |
| a batch's inputs | `clear_rest`, `copy_features` | `encode_batch` | stream order; padded batches share a buffer |
| a batch's outputs | `encode_batch` | `take_outputs` | stream order: it follows immediately |
| an item's outputs | `take_outputs` | consumers, after `end` | when neither the cache nor an unfreed payload needs them |
"""

from collections import deque
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Device, Event, Graph, HostRing, Launch, Stream
from omni.device.graphs import CapturedGraphs
from omni.errors import ReturnedError, type_of
from omni.stage import method_name
from omni_encoder.jobs import Outputs
from omni_encoder.model import EncoderModel
from omni_encoder.plan import EncodePlan

_PIECE = 2 * 1024 * 1024
"""Bytes of a piece: copying it takes the host well under a millisecond, one tick of the engine loop."""
_SLOTS = 4


class FeatureCopy:
    """A copy of host memory into `buffer`, in order. sources: bytes and their offsets in `buffer`."""

    def __init__(self, buffer: Tensor, sources: list[tuple[int, NDArray[np.uint8]]]) -> None:
        self.buffer = buffer
        self._sources = deque(sources)

    @property
    def finished(self) -> bool:
        return not self._sources

    def fill(self, piece: NDArray[np.uint8]) -> Tensor:
        """Writes the next bytes into `piece`, with zeros between sources. Returns their destination in the buffer."""
        start = end = self._sources[0][0]
        while self._sources:
            offset, data = self._sources[0]
            free = start + piece.size - offset
            if free <= 0:
                break
            count = min(free, data.size)
            piece[end - start : offset - start] = 0
            piece[offset - start : offset - start + count] = data[:count]
            end = offset + count
            self._sources.popleft()
            if count < data.size:
                self._sources.appendleft((end, data[count:]))
        return self.buffer[start:end]


class PieceUploader:
    """A small ring of pinned memory for batches of any size, one piece per tick."""

    def __init__(self, device: Device, stream: Stream, piece_bytes: int = _PIECE) -> None:
        self._device = device
        self._stream = stream
        self._ring = HostRing.allocate(device, (piece_bytes,), torch.uint8, _SLOTS)

    def begin(self, plan: EncodePlan, buffer: Tensor) -> FeatureCopy:
        """Enqueues the writes without host memory: zeros after the parts, and parts on the device."""
        rests: list[Tensor] = []
        sources: list[tuple[int, NDArray[np.uint8]]] = []
        for _, start, item in plan.placed():
            offset = start
            for part in item.parts:
                end = offset + part.nbytes
                if isinstance(part, Tensor) and part.device.type != "cpu":
                    data = part.flatten().view(torch.uint8)
                    self._device.launch(self._stream, copy_features, buffer[offset:end], data)
                else:
                    array = part.flatten().view(torch.uint8).numpy() if isinstance(part, Tensor) else part
                    sources.append((offset, array.reshape(-1).view(np.uint8)))
                offset = end
            if offset < start + item.nbytes:
                rests.append(buffer[offset : start + item.nbytes])
        if rests:
            self._device.launch(self._stream, clear_rest, rests)
        return FeatureCopy(buffer, [source for source in sources if source[1].size])

    def advance(self, transfer: FeatureCopy) -> bool:
        """Enqueues the next piece. Returns whether there was one, and a free slot for it."""
        if transfer.finished or not self._ring.ready:
            return False
        slot = self._ring.advance()
        piece = slot.take()
        assert piece.dtype == np.uint8
        try:
            target = transfer.fill(piece.view(np.uint8))
            self._device.launch(self._stream, copy_features, target, slot.tensor[: target.shape[0]])
        finally:
            slot.guard(self._device.record(self._stream))
        return True


def clear_rest(rests: list[Tensor]) -> None:
    """Zeroes the rest of the inputs: a mask does not remove the NaN of an earlier batch from a sum."""
    for rest in rests:
        rest.zero_()


def copy_features(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)


@dataclass(frozen=True, slots=True)
class EncodeGraph:
    """outputs: tensors in the graph's memory, valid until the next replay of any graph of the stream."""

    graph: Graph
    outputs: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch whose inputs are being sent to the device. captured: None if it runs uncaptured."""

    plan: EncodePlan
    captured: EncodeGraph | None
    transfer: FeatureCopy


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """outputs: one entry per item, filled by the device; valid once `end` is done."""

    outputs: list[Outputs]
    end: Event


class BatchEncoder:
    """Owns the stream, the captured batches and their inputs. It does no scheduling."""

    def __init__(self, device: Device, stream: Stream, model: EncoderModel, lengths: Sequence[int] = ()) -> None:
        """lengths: batch lengths that batches are padded to, captured or not: operations of another shape round differently."""
        self._device = device
        self._stream = stream
        self._model = model
        self._uploader = PieceUploader(device, stream)
        self._graphs = CapturedGraphs[None, EncodeGraph](stream.name, unit="embeddings", option="graph_lengths")
        self._lengths = tuple(sorted(lengths))
        largest = max((model.plan((), length).nbytes for length in lengths), default=0)
        self._inputs = device.zeros((largest,), torch.uint8)

    def capture(self, lengths: Iterable[int]) -> None:
        """Captures batches of these lengths. At start. lengths: some of those to pad to, preferably the largest first."""
        for length in lengths:
            plan = self._model.plan((), length)
            outputs: dict[str, Tensor] = {}
            encode = self._encode(plan, self._inputs, outputs)
            graph = self._device.capture(self._stream, f"{self._stream.name}-{length}", [encode])
            self._graphs.add(None, length, EncodeGraph(graph, outputs))

    def prepare(self, items: Sequence[Mapping[str, Tensor]]) -> PreparedBatch:
        captured, padded, length = None, None, self._model.padded_length(items)
        if length is None:
            self._graphs.log_uncaptured("media that the model cannot pad")
        else:
            size, captured = self._graphs.find(None, length)
            padded = size if captured is not None else next((known for known in self._lengths if known >= length), None)
        given: object = self._model.plan(items, padded)
        if not isinstance(given, EncodePlan):
            name = method_name(self._model.plan, "plan")
            raise ReturnedError(f"{name} gave {type_of(given)}: return an EncodePlan", self._model.plan)
        plan = given
        if len(plan.sizes) != len(items):
            problem = f"{type(self._model).__name__} planned {len(plan.sizes)} outputs for {len(items)} items"
            raise ReturnedError(problem, self._model.plan)
        buffer = self._inputs if padded is not None else self._device.empty((plan.nbytes,), torch.uint8, self._stream)
        return PreparedBatch(plan, captured, self._uploader.begin(plan, buffer))

    def send(self, batch: PreparedBatch) -> bool:
        """Enqueues the copy of the next piece of the inputs. Returns whether there was a piece and memory for it."""
        return self._uploader.advance(batch.transfer)

    def launch(self, batch: PreparedBatch) -> EncodedBatch:
        outputs: Mapping[str, Tensor]
        if batch.captured is not None:
            self._device.replay(self._stream, batch.captured.graph)
            outputs = batch.captured.outputs
        else:
            outputs = {}
            encode = self._encode(batch.plan, batch.transfer.buffer, outputs)
            self._device.launch(self._stream, encode.phase, *encode.buffers)
        items: list[Outputs] = []
        self._device.launch(self._stream, take_outputs, self._model, outputs, batch.plan.sizes, items)
        return EncodedBatch(items, self._device.record(self._stream))

    def close(self) -> None:
        self._graphs.clear()

    def _encode(self, plan: EncodePlan, buffer: Tensor, outputs: MutableMapping[str, Tensor]) -> Launch:
        return Launch.of(encode_batch, self._model, plan.views(buffer), plan.segments, outputs)


def encode_batch(
    model: EncoderModel,
    inputs: Mapping[str, Tensor],
    segments: tuple[int, ...] | None,
    outputs: MutableMapping[str, Tensor],
) -> None:
    encoded = model.encode(inputs, segments)
    if not isinstance(encoded, Mapping) or not all(isinstance(tensor, Tensor) for tensor in encoded.values()):
        name = method_name(model.encode, "encode")
        raise ReturnedError(f"{name} gave {type_of(encoded)}: return tensors by name", model.encode)
    outputs.update(encoded)


def take_outputs(
    model: EncoderModel, outputs: Mapping[str, Tensor], sizes: Sequence[int], items: list[Outputs]
) -> None:
    """Copies each item's outputs: a view would keep the memory of its whole batch alive, or be overwritten by the next."""
    for start, end in pairwise(accumulate(sizes, initial=0)):
        parts = model.item_outputs(outputs, slice(start, end))
        items.append({name: part.clone(memory_format=torch.contiguous_format) for name, part in parts.items()})
