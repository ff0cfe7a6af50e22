"""Copies payloads from the producer's memory to the consumer's: the only reader of page slices in this process."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import COMPLETED, Device, Event, PhaseCategory, Stream, Uploader, declare_categories
from omni.payload import PageSlice

Source = PageSlice | Tensor | NDArray[np.int64]

_ALL = slice(None)
_RING = 4
"""Uploads under way at most."""

declare_categories({"gather_rows": PhaseCategory.PAYLOAD, "copy_rows": PhaseCategory.PAYLOAD})


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """Rows of one source, and their destination.

    source: a page slice; a tensor on any device, viewed by `as_matrix`; or int64 `[n, width]` host values.
    into: `[m, width]`, memory of the consumer. Values are converted to its dtype.
    destinations: int64, the row of `into` for each source row; None if the rows fill `into`, in order.
    rows: range of source rows. columns: range of source columns, if the rows fill `into`.
    """

    source: Source
    into: Tensor
    destinations: NDArray[np.int64] | None = None
    rows: slice = field(default_factory=lambda: _ALL)
    columns: slice = field(default_factory=lambda: _ALL)


@dataclass(frozen=True, slots=True)
class CopyResult:
    """The result of `copy`. end: the end of the launched copies. failed: transfers not launched completely."""

    end: Event
    failed: Mapping[Transfer, Exception]

    def check(self) -> None:
        """Raises the first error."""
        for error in self.failed.values():
            raise error


class PayloadCopier:
    """Launches copies on one stream. No call waits: the sources must have arrived (`Feed.arrived`), and the end is an
    event.

    | buffer | written by | read by | free when |
    |---|---|---|---|
    | source | producer, before the payload's event | `gather_rows`, `copy_rows` | `omni.stage.messages`, `PageSlice` |
    | slots, destinations, values | `copy_upload` | `gather_rows`, `copy_rows` | stream order: the next upload follows |
    | `Transfer.into` | `gather_rows`, `copy_rows` | the stream; others after `CopyResult.end` | the consumer frees it |
    """

    def __init__(self, device: Device, stream: Stream, max_numbers: int) -> None:
        """max_numbers: maximum of int64 numbers that one call uploads: slots, destinations and host values."""
        self._device = device
        self._stream = stream
        self._uploader = Uploader(device, stream, max_numbers, _RING)

    @property
    def ready(self) -> bool:
        """Whether `copy` may be called now."""
        return self._uploader.ready

    def copy(self, transfers: Sequence[Transfer]) -> CopyResult:
        """Launches one upload, if necessary, and one copy per group of transfers. A group: transfers with destinations from
        the same pages into the same memory; those with destinations from the host into the same memory; any other single
        transfer.

        An error in a copy fails the transfers of its group; an error in the upload fails all. The end is reported to
        all page slices in any case, since copies launched before an error read them.
        """
        if not transfers:
            return CopyResult(COMPLETED, {})
        groups: dict[tuple[int, int], list[Transfer]] = {}
        for transfer in transfers:
            groups.setdefault(_group_of(transfer), []).append(transfer)
        failed = self._launch_all(list(groups.values()))
        end = self._device.record(self._stream)
        for transfer in transfers:
            if isinstance(transfer.source, PageSlice):
                transfer.source.gathered(end)
        return CopyResult(end, failed)

    def _launch_all(self, groups: Sequence[Sequence[Transfer]]) -> dict[Transfer, Exception]:
        indexes = [_indexes(group) for group in groups]
        arrays = [index for pair in indexes for index in pair if isinstance(index, np.ndarray)]
        try:
            views = iter(self._uploader.send(arrays) if arrays else [])
        except Exception as error:
            return {transfer: error for group in groups for transfer in group}
        failed: dict[Transfer, Exception] = {}
        for group, pair in zip(groups, indexes, strict=True):
            source, to = (next(views) if isinstance(index, np.ndarray) else index for index in pair)
            try:
                self._launch(group[0], source, to)
            except Exception as error:
                failed.update(dict.fromkeys(group, error))
        return failed

    def _launch(self, first: Transfer, index: Tensor | slice | None, to: Tensor | slice | None) -> None:
        into, source, rows, columns = first.into, first.source, first.rows, first.columns
        if isinstance(source, PageSlice):
            self._device.launch(self._stream, gather_rows, into, source.pages, index, to, columns)
        elif isinstance(source, Tensor):
            self._device.launch(self._stream, copy_rows, into, source, rows, to, columns)
        else:
            self._device.launch(self._stream, copy_rows, into, index, _ALL, to, columns)


def as_matrix(tensor: Tensor) -> Tensor:
    """The tensor as `[first dimension, rest]`; `[1, 1]` for a number. A view if contiguous; else for phases only."""
    shape = tensor.shape
    return tensor.reshape(shape[0] if shape else 1, math.prod(shape[1:]))


def _group_of(transfer: Transfer) -> tuple[int, int]:
    match transfer.source:
        case PageSlice(pages=pages) if transfer.destinations is not None:
            return id(pages), id(transfer.into)
        case np.ndarray() if transfer.destinations is not None:
            return 0, id(transfer.into)
        case _:
            return id(transfer), 0


_Index = NDArray[np.int64] | slice | None
"""Rows: an array to upload, or consecutive ones. None where there is nothing to select."""


def _indexes(group: Sequence[Transfer]) -> tuple[_Index, _Index]:
    """The uploads of a group: slots of pages or host values, and destinations. A single transfer between consecutive rows, such as
    the hidden state of one token, uploads nothing."""
    if len(group) == 1 and not isinstance(source := group[0].source, np.ndarray):
        slots = _range(source.slots[group[0].rows]) if isinstance(source, PageSlice) else None
        to = _range(group[0].destinations) if group[0].destinations is not None else None
        scattered = slots is None and isinstance(source, PageSlice)
        if not scattered and (to is not None or group[0].destinations is None):
            return slots, to
    return _joined(map(_values, group)), _joined(each.destinations for each in group)


def _values(transfer: Transfer) -> NDArray[np.int64] | None:
    match transfer.source:
        case PageSlice(slots=slots):
            return slots[transfer.rows]
        case np.ndarray() as values:
            return values[transfer.rows]
        case _:
            return None


def _joined(arrays: Iterable[NDArray[np.int64] | None]) -> NDArray[np.int64] | None:
    """Concatenates the arrays; None if there are none. In a group of several transfers, all have one or none has."""
    given = [array for array in arrays if array is not None]
    return np.concatenate(given) if given else None


def _range(rows: NDArray[np.int64]) -> slice | None:
    """The rows as a range, if they are consecutive."""
    first, count = int(rows[0]) if rows.size else 0, rows.size
    if count <= 1 or np.array_equal(rows, np.arange(first, first + count)):
        return slice(first, first + count)
    return None


def gather_rows(into: Tensor, pages: Tensor, slots: Tensor | slice, to: Tensor | slice | None, columns: slice) -> None:
    rows = pages.flatten(0, 1)[:, columns]
    if isinstance(slots, slice):
        _store(into, rows[slots], to)
    elif to is None and (rows.dtype, rows.device) == (into.dtype, into.device):
        torch.index_select(rows, 0, slots, out=into)
    else:
        _store(into, rows.index_select(0, slots), to)


def copy_rows(into: Tensor, source: Tensor, rows: slice, to: Tensor | slice | None, columns: slice) -> None:
    _store(into, as_matrix(source)[rows, columns], to)


def _store(into: Tensor, rows_nW: Tensor, to: Tensor | slice | None) -> None:
    """to: int64 `[n]`, the row of `into` for each row; None if they fill it."""
    if to is None:
        into.copy_(rows_nW, non_blocking=True)
    elif isinstance(to, slice):
        into[to].copy_(rows_nW, non_blocking=True)
    else:
        into.index_copy_(0, to, rows_nW.to(into.device, into.dtype, non_blocking=True))
