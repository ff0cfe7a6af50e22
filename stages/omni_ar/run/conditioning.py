"""Takes the conditioning of steps in: device rows of another stage are copied to where the request's steps find them.

| buffer | written by | read by | freed by |
|---|---|---|---|
| the producer's pages or tensors | producer, before the payload's event | `gather_step_rows`, `store_step_rows` | the lease |
| `RowState.conditioning` of a row | these, each place once | `embed_inputs`, same stream | the row's next owner writes over them |

Nothing is copied before the request has a row. Until then what came counts against its edge's credit: its producer may be paused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omni.device import COMPLETED, Device, Stream, Uploader
from omni.errors import InputError
from omni.payload import PageSlice
from omni.stage import Feed, release
from omni_ar.inputs import StepInputs
from omni_ar.model import ArShape
from omni_ar.run.limits import Limits, step_fields
from omni_ar.run.request import ArRequest, StepArrival

_RING = 4
_AT_ONCE = 1024
"""Rows that one tick copies, or as many as a request may have if that is more."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """The first rows of an arrival, and where they go."""

    request: ArRequest
    rows: PageSlice | Tensor
    places_n: NDArray[np.int64]


class StepIntake:
    """Conditioning in the order it came: what has no device rows waits behind what has, and all of that for the request's row."""

    def __init__(
        self, name: str, device: Device, stream: Stream, conditioning: Tensor, shape: ArShape, limits: Limits
    ) -> None:
        """conditioning: `RowState.conditioning`. name: of the stage, for errors."""
        self._name = name
        self._device = device
        self._stream = stream
        self._conditioning = conditioning
        self._shape = shape
        self._limits = limits
        self._most = max(limits.step_places, _AT_ONCE) if shape.step_width else 0
        self._uploader = Uploader(device, stream, 2 * self._most, _RING)
        self._waiting: dict[ArRequest, None] = {}

    @property
    def waiting(self) -> int:
        """Inputs that are not in their places."""
        return sum(len(request.step_arrivals) for request in list(self._waiting))

    def add(self, request: ArRequest, inputs: StepInputs, message: Feed) -> None:
        """Owns the message's lease from here on. Raises InputError for what does not fit the model."""
        arrival = StepArrival(message, inputs, message.payload.tensors.get("rows"))
        request.step_arrivals.append(arrival)
        self._waiting[request] = None
        inputs.check(len(self._shape.step_columns))
        self._check_rows(arrival)
        if message.lease is not None and not request.prompt_ready:
            # Its prompt, or a segment of it, may come from a producer that must not be paused until then.
            message.lease.take()
        if arrival.rows is None and len(request.step_arrivals) == 1:
            self._place(request, arrival, 0)
            self._forget(request)
            release(message, COMPLETED)

    def drop(self, request: ArRequest) -> None:
        """Lets go of what waits. Of that, nothing was copied."""
        while request.step_arrivals:
            release(request.step_arrivals.popleft().message, COMPLETED)
        self._forget(request)

    def tick(self) -> tuple[list[ArRequest], list[tuple[ArRequest, Exception]]]:
        """Takes in what has become ready. Returns the requests that got something, and those that failed."""
        if not self._waiting or not self._uploader.ready:
            return [], []
        copies: list[_Copy] = []
        taken: list[tuple[ArRequest, StepArrival]] = []
        room = self._most
        for request in self._waiting:
            for arrival in self._ready(request):
                needed = self._needed(request, arrival)
                if needed > room:
                    break
                room -= needed
                taken.append((request, arrival))
                copies += self._place(request, arrival, needed)
        failed = self._launch(copies)
        end = self._device.record(self._stream) if copies else COMPLETED
        for _, arrival in taken:
            if isinstance(arrival.rows, PageSlice):
                arrival.rows.gathered(end)
            release(arrival.message, end)
        self._waiting = {request: None for request in self._waiting if request.step_arrivals}
        return list({request: None for request, _ in taken}), failed

    def _ready(self, request: ArRequest) -> Iterator[StepArrival]:
        """Arrivals that can be taken in now, each when the one before has been."""
        while request.row is not None and request.step_arrivals and request.step_arrivals[0].message.arrived:
            yield request.step_arrivals[0]

    def _needed(self, request: ArRequest, arrival: StepArrival) -> int:
        """How many of its rows will be read: no step runs past the request's limit, so there is a place for each."""
        if arrival.rows is None:
            return 0
        return max(0, min(arrival.count, request.max_tokens - 1 - len(request.steps)))

    def _place(self, request: ArRequest, arrival: StepArrival, needed: int) -> list[_Copy]:
        """The request's oldest arrival becomes conditioning of its next steps, once `needed` of its rows are copied."""
        request.step_arrivals.popleft()
        request.steps.extend(self._words(arrival.inputs.columns))
        if arrival.inputs.pad is not None:
            (request.step_pad,) = self._words(arrival.inputs.pad[:, None])
        if arrival.rows is None or not needed:
            return []
        first = request.row_index * self._limits.step_places + request.places_taken
        places_n = np.arange(first, first + needed)
        for words, place in zip(request.steps[-arrival.count :], places_n, strict=False):
            words[-1] = place
        request.places_taken += needed
        return [_Copy(request, arrival.rows, places_n)]

    def _words(self, columns_Sn: NDArray[np.int64]) -> NDArray[np.int64]:
        """`[n, step_fields]`, of steps without rows."""
        words_nX = np.full((columns_Sn.shape[1], step_fields(self._shape)), self._limits.null_place)
        words_nX[:, : len(columns_Sn)] = columns_Sn.T
        return words_nX

    def _launch(self, copies: list[_Copy]) -> list[tuple[ArRequest, Exception]]:
        """One launch for all rows in the same pages, and one for each tensor."""
        if not copies:
            return []
        groups: dict[int, list[_Copy]] = {}
        for copy in copies:
            source = copy.rows.pages if isinstance(copy.rows, PageSlice) else copy
            groups.setdefault(id(source), []).append(copy)
        parts = [part for group in groups.values() for part in (_slots(group), [copy.places_n for copy in group])]
        try:
            views = self._uploader.send([np.concatenate(part) for part in parts])
        except Exception as error:
            return [(copy.request, error) for copy in copies]
        failed: list[tuple[ArRequest, Exception]] = []
        for group, slots_n, places_n in zip(groups.values(), views[::2], views[1::2], strict=True):
            try:
                self._copy(group[0], slots_n, places_n)
            except Exception as error:
                failed += [(copy.request, error) for copy in group]
        return failed

    def _copy(self, first: _Copy, slots_n: Tensor, places_n: Tensor) -> None:
        rows, launch = first.rows, self._device.launch
        if isinstance(rows, PageSlice):
            launch(self._stream, gather_step_rows, self._conditioning, rows.pages, slots_n, places_n)
        else:
            launch(self._stream, store_step_rows, self._conditioning, rows[: first.places_n.size], places_n)

    def _forget(self, request: ArRequest) -> None:
        if not request.step_arrivals:
            self._waiting.pop(request, None)

    def _check_rows(self, arrival: StepArrival) -> None:
        tensors, width, field = arrival.message.payload.tensors, self._shape.step_width, "step_inputs.rows"
        if not width and tensors:
            raise InputError(field, f"are given, and the model of {self._name} takes none", "leave them out")
        if unknown := sorted(tensors.keys() - {"rows"}):
            raise InputError("step_inputs", f"have a tensor {unknown[0]!r}", "call it 'rows'")
        rows = arrival.rows
        if rows is None:
            return
        if isinstance(rows, PageSlice):
            shape, dtype = [len(rows.slots), rows.pages.shape[-1]], rows.pages.dtype
        else:
            shape, dtype = list(rows.shape), rows.dtype
        wanted = [arrival.count, width]
        # Stages may differ in their dtype: numbers of another are converted as they are copied.
        if shape != wanted or not dtype.is_floating_point:
            raise InputError(field, f"are {dtype} {shape}", f"give {self._conditioning.dtype} {wanted}")


def _slots(group: Sequence[_Copy]) -> list[NDArray[np.int64]]:
    """Of rows in pages; of a tensor none, it is copied as it is."""
    none = np.empty(0, np.int64)
    return [copy.rows.slots[: copy.places_n.size] if isinstance(copy.rows, PageSlice) else none for copy in group]


def gather_step_rows(conditioning: Tensor, pages: Tensor, slots_n: Tensor, places_n: Tensor) -> None:
    conditioning.index_copy_(0, places_n, pages.flatten(0, 1).index_select(0, slots_n).to(conditioning.dtype))


def store_step_rows(conditioning: Tensor, rows_nE: Tensor, places_n: Tensor) -> None:
    conditioning.index_copy_(0, places_n, rows_nE.to(conditioning.device, conditioning.dtype, non_blocking=True))
