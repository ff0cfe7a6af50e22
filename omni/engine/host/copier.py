"""Copies of payload into pinned memory, on a stream of their own."""

from collections.abc import Sequence

from torch import Tensor

from omni.device import Device, Event, Uploader
from omni.engine.host.part import Piece
from omni.payload import PageSlice

MOST_ROWS = 4096
"""Scattered page rows that one copy takes at most."""
_RING = 4


class Copier:
    """Launches copies; what they read must have arrived. Nothing else runs on its stream, and nothing waits for it.

    | buffer | written by | read by | freed by |
    |---|---|---|---|
    | row numbers | `copy_upload` | `gather_piece`, same stream | stream order: the next upload follows |
    | pinned memory | `copy_piece`, `gather_piece` | host, once the copy's event is done | whoever lent it |
    """

    def __init__(self, device: Device, name: str) -> None:
        self._device = device
        self._stream = device.stream(name)
        self._uploader = Uploader(device, self._stream, MOST_ROWS, _RING)

    @property
    def ready(self) -> bool:
        """Whether `copy` may be called now."""
        return self._uploader.ready

    def copy(self, pieces: Sequence[tuple[Piece, Tensor]]) -> Event:
        """Each piece into its pinned memory, `[rows, columns]` of its dtype; together at most `MOST_ROWS` scattered rows.

        Returns the end. What fails may have launched a part of it: that is over at `end`.
        """
        slots = [piece.scattered() for piece, _ in pieces]
        told = [rows for rows in slots if rows is not None]
        views = iter(self._uploader.send(told)) if told else iter(())
        try:
            for (piece, host), rows in zip(pieces, slots, strict=True):
                self._launch(piece, host, None if rows is None else next(views))
        finally:
            end = self.end()
            for piece, _ in pieces:
                if isinstance(piece.part.tensor, PageSlice):
                    piece.part.tensor.gathered(end)
        return end

    def end(self) -> Event:
        """After everything launched so far."""
        return self._device.record(self._stream)

    def _launch(self, piece: Piece, host: Tensor, slots_n: Tensor | None) -> None:
        tensor, columns = piece.part.tensor, slice(piece.left, piece.right)
        if slots_n is not None:
            assert isinstance(tensor, PageSlice)
            self._device.launch(self._stream, gather_piece, host, tensor.pages, slots_n, columns)
            return
        first = piece.first
        if isinstance(tensor, PageSlice):
            first, tensor = int(tensor.slots[first]), tensor.pages
        rows = slice(first, first + piece.shape[0])
        self._device.launch(self._stream, copy_piece, host, tensor, piece.part.columns, rows, columns)


def copy_piece(host: Tensor, source: Tensor, width: int, rows: slice, columns: slice) -> None:
    """width: of the source seen as rows."""
    host.copy_(source.reshape(-1, width)[rows, columns], non_blocking=True)


def gather_piece(host: Tensor, pages: Tensor, slots_n: Tensor, columns: slice) -> None:
    host.copy_(pages.flatten(0, 1)[:, columns].index_select(0, slots_n), non_blocking=True)
