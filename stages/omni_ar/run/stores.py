"""Stores for the tensors of other stages: conditioning of steps, and multimodal embeddings."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import COMPLETED, Device, Stream
from omni.errors import InputError
from omni.payload import PageSlice
from omni.stage import Feed, PayloadCopier, Transfer, as_matrix
from omni_ar.inputs import MultimodalEmbedding, StepInputs
from omni_ar.model import ArShape
from omni_ar.run.limits import Limits, step_fields
from omni_ar.run.request import ArRequest, ArrivedConditioning, ReadyEmbedding

_AT_ONCE = 1024
"""Maximum vectors of conditioning that one tick copies, or the maximum of one request if that is more."""

Failures = list[tuple[ArRequest, Exception]]


class ConditioningStore:
    """Copies conditioning into `RowState.conditioning`, in order of arrival: an input without vectors waits behind one with
    them, and both wait for the request's row. Until it is copied, an input counts against its edge's credit."""

    def __init__(
        self, name: str, device: Device, stream: Stream, *, conditioning: Tensor, shape: ArShape, limits: Limits
    ) -> None:
        """conditioning: the buffer `RowState.conditioning`. name: the stage's name, for errors."""
        self._name = name
        self._conditioning = conditioning
        self._shape = shape
        self._limits = limits
        self._max_vectors = max(limits.max_step_vectors, _AT_ONCE) if shape.step_width else 0
        self._copier = PayloadCopier(device, stream, 2 * self._max_vectors)
        self._waiting: dict[ArRequest, None] = {}

    @property
    def waiting(self) -> int:
        """Number of inputs that are not copied yet."""
        return sum(len(request.step_arrivals) for request in list(self._waiting))

    def add(self, request: ArRequest, inputs: StepInputs, message: Feed) -> None:
        """Takes ownership of the message's lease. Raises InputError for inputs that do not fit the model."""
        arrival = ArrivedConditioning(message, inputs, message.payload.tensors.get("vectors"))
        request.step_arrivals.append(arrival)
        self._waiting[request] = None
        inputs.check(len(self._shape.step_columns))
        self._check_vectors(arrival)
        if not request.prompt_ready:
            # Its prompt, or an embedding, may still come from this producer, which must not be paused until then.
            message.acquire()
        if arrival.vectors is None and len(request.step_arrivals) == 1:
            self._place(request, arrival, 0)
            self._forget(request)
            message.release(COMPLETED)

    def drop(self, request: ArRequest) -> None:
        while request.step_arrivals:
            request.step_arrivals.popleft().message.release(COMPLETED)
        self._forget(request)

    def tick(self) -> tuple[list[ArRequest], Failures]:
        """Copies inputs that have become ready. Returns the requests that received some, and those that failed."""
        if not self._waiting or not self._copier.ready:
            return [], []
        transfers: dict[Transfer, ArRequest] = {}
        taken: list[tuple[ArRequest, ArrivedConditioning]] = []
        free = self._max_vectors
        for request in self._waiting:
            for arrival in self._ready(request):
                # The vectors that will be read. No step runs past the request's limit, so each has an entry.
                left = request.max_tokens - 1 - len(request.steps)
                needed = 0 if arrival.vectors is None else max(0, min(arrival.count, left))
                if needed > free:
                    break
                free -= needed
                taken.append((request, arrival))
                transfers |= dict.fromkeys(self._place(request, arrival, needed), request)
        result = self._copier.copy(list(transfers))
        for _, arrival in taken:
            arrival.message.release(result.end)
        self._waiting = {request: None for request in self._waiting if request.step_arrivals}
        failed = [(transfers[transfer], error) for transfer, error in result.failed.items()]
        return list({request: None for request, _ in taken}), failed

    def _ready(self, request: ArRequest) -> Iterator[ArrivedConditioning]:
        """Inputs that can be placed now, in order."""
        while request.row is not None and request.step_arrivals and request.step_arrivals[0].message.arrived:
            yield request.step_arrivals[0]

    def _place(self, request: ArRequest, arrival: ArrivedConditioning, needed: int) -> list[Transfer]:
        """Makes the request's oldest input the conditioning of its next steps. Returns the copies of `needed` vectors."""
        request.step_arrivals.popleft()
        request.steps.extend(self._fields(arrival.inputs.columns))
        if arrival.inputs.pad is not None:
            (request.step_pad,) = self._fields(arrival.inputs.pad[:, None])
        if arrival.vectors is None or not needed:
            return []
        first = request.row_index * self._limits.max_step_vectors + request.num_vectors
        indexes_n = np.arange(first, first + needed)
        for fields, index in zip(request.steps[-arrival.count :], indexes_n, strict=False):
            fields[-1] = index
        request.num_vectors += needed
        return [Transfer(arrival.vectors, self._conditioning, indexes_n, slice(needed))]

    def _fields(self, columns_Sn: NDArray[np.int64]) -> NDArray[np.int64]:
        """Conditioning fields of steps without vectors, `[n, step_fields]`."""
        fields_nX = np.full((columns_Sn.shape[1], step_fields(self._shape)), self._limits.null_vector)
        fields_nX[:, : len(columns_Sn)] = columns_Sn.T
        return fields_nX

    def _forget(self, request: ArRequest) -> None:
        if not request.step_arrivals:
            self._waiting.pop(request, None)

    def _check_vectors(self, arrival: ArrivedConditioning) -> None:
        tensors, width, field = arrival.message.payload.tensors, self._shape.step_width, "step_inputs.vectors"
        if not width and tensors:
            raise InputError(field, f"are given, and the model of {self._name} takes none", "leave them out")
        if unknown := sorted(tensors.keys() - {"vectors"}):
            raise InputError("step_inputs", f"have a tensor {unknown[0]!r}", "call it 'vectors'")
        vectors = arrival.vectors
        if vectors is None:
            return
        wanted = [arrival.count, width]
        # Stages may differ in dtype: the copy converts floating-point numbers.
        if list(vectors.shape) != wanted or not vectors.dtype.is_floating_point:
            given = f"are {vectors.dtype} {list(vectors.shape)}"
            raise InputError(field, given, f"give {self._conditioning.dtype} {wanted}")


@dataclass(frozen=True, slots=True, eq=False)
class _Arrival:
    """An embedding that has arrived."""

    request: ArRequest
    embedding: MultimodalEmbedding
    message: Feed

    @property
    def key(self) -> tuple[str, int]:
        return self.embedding.name, self.embedding.index

    @property
    def page_entries(self) -> int:
        return sum(len(t.slots) for t in self.message.payload.tensors.values() if isinstance(t, PageSlice))


class EmbeddingStore:
    """Makes embeddings readable for the model: copies tensors that are in pages, in another dtype or in host memory."""

    def __init__(self, stage: str, device: Device, stream: Stream, max_entries: int, dtype: torch.dtype) -> None:
        """stage: the stage's name, for errors. max_entries: its `max_model_len`. dtype: its dtype, for floating-point tensors."""
        self._stage = stage
        self._device = device
        self._stream = stream
        self._max_entries = max_entries
        self._dtype = dtype
        self._copier = PayloadCopier(device, stream, max_entries)
        self._waiting: list[_Arrival] = []

    @property
    def waiting(self) -> int:
        """Number of embeddings whose producer's work is unfinished or that did not fit into an upload."""
        return len(self._waiting)

    def add(self, request: ArRequest, embedding: MultimodalEmbedding, message: Feed) -> None:
        """Takes ownership of the message's lease. Raises InputError for a duplicate embedding and for one that is too long."""
        # A prompt waits for all of its embeddings, and its length is bounded, so they do not count against the edge's
        # credit.
        message.acquire()
        arrival = _Arrival(request, embedding, message)
        twice = arrival.key in self._arrived(request)
        self._waiting.append(arrival)
        field = _called(request, embedding)
        if twice:
            raise InputError(field, "was given twice", "feed each embedding once")
        if (entries := arrival.page_entries) > self._max_entries:
            problem = f"has {entries} vectors, and {self._stage} takes {self._max_entries}"
            raise InputError(field, problem, "shorten the prompt", f"raise {self._stage}.max_model_len")

    def missing(self, request: ArRequest) -> str | None:
        """The name of an embedding that the request's prompt waits for; None if all have arrived."""
        placeholders, arrived = (
            request.prompt.placeholders if request.prompt is not None else (),
            self._arrived(request),
        )
        return next((f"{p.name}[{p.index}]" for p in placeholders if (p.name, p.index) not in arrived), None)

    def drop(self, request: ArRequest) -> None:
        for arrival in self._waiting:
            if arrival.request is request:
                arrival.message.release(COMPLETED)
        self._waiting = [arrival for arrival in self._waiting if arrival.request is not request]

    def tick(self) -> tuple[list[ArRequest], Failures]:
        """Receives embeddings that have become ready. Returns the requests that received some, and those that failed."""
        ready = self._ready()
        tensors: dict[_Arrival, dict[str, Tensor]] = {}
        copies: dict[Transfer, _Arrival] = {}
        failed: dict[_Arrival, Exception] = {}
        for arrival in ready:
            own: list[Transfer] = []
            try:
                tensors[arrival] = {n: self._place(t, own) for n, t in arrival.message.payload.tensors.items()}
            except Exception as error:
                failed[arrival] = error
            else:
                copies |= dict.fromkeys(own, arrival)
        result = self._copier.copy(list(copies))
        failed |= {copies[copy]: error for copy, error in result.failed.items()}
        counts = Counter(copies.values())
        for arrival in ready:
            message, count = arrival.message, counts[arrival]
            whole = 0 < count == len(message.payload.tensors)
            if whole or arrival in failed:
                message.release(result.end)
            if arrival not in failed:
                # The copies run on the stream that will read them, so the prompt need not wait for them.
                copied = result.end if count else COMPLETED
                made = ReadyEmbedding(tensors[arrival], copied, None if whole else message, message.source)
                arrival.request.embeddings[arrival.key] = made
        self._waiting = [arrival for arrival in self._waiting if arrival not in ready]
        taken = [arrival.request for arrival in ready if arrival not in failed]
        return taken, [(arrival.request, error) for arrival, error in failed.items()]

    def _ready(self) -> list[_Arrival]:
        """Embeddings that can be received now, up to the size of one upload."""
        if not self._waiting or not self._copier.ready:
            return []
        ready: list[_Arrival] = []
        free = self._max_entries
        for arrival in self._waiting:
            if arrival.message.arrived and arrival.page_entries <= free:
                free -= arrival.page_entries
                ready.append(arrival)
        return ready

    def _place(self, source: Tensor | PageSlice, copies: list[Transfer]) -> Tensor:
        """The tensor that the model reads: `source` itself, or memory for a copy, which is added to `copies`."""
        dtype = self._dtype if source.dtype.is_floating_point else source.dtype
        if isinstance(source, Tensor) and (source.device.type, source.dtype) == (self._device.torch_device.type, dtype):
            return source
        out = self._device.empty(tuple(source.shape), dtype, self._stream)
        copies.append(Transfer(source, as_matrix(out)))
        return out

    def _arrived(self, request: ArRequest) -> set[tuple[str, int]]:
        """Name and index of the request's embeddings that have arrived, received or pending."""
        return {arrival.key for arrival in self._waiting if arrival.request is request} | request.embeddings.keys()


def _called(request: ArRequest, embedding: MultimodalEmbedding) -> str:
    """Its name in errors: that of its placeholder, if the prompt has arrived."""
    placeholders = request.prompt.placeholders if request.prompt is not None else ()
    names = (p.called for p in placeholders if (p.name, p.index) == (embedding.name, embedding.index))
    return next(names, f"embedding.{embedding.name}[{embedding.index}]")
