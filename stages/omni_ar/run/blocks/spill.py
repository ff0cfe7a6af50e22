"""Moves payload out of pages that are wanted for something else."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Device, Event, Stream, Uploader
from omni.payload import PageSlice

_RING = 4


@dataclass(frozen=True, slots=True)
class SpilledSlice:
    """A slice that was moved. memory: where its rows are now. reader: the end of gathers from where they were."""

    part: PageSlice
    memory: Tensor
    reader: Event


class Spiller:
    """Copies page rows into memory of their own, on the stage's stream: what reuses the pages there follows the copy.

    | buffer | written by | read by | freed when |
    |---|---|---|---|
    | spilled rows | `copy_rows` | consumers, after `PageSlice.moved` | the hold of their payload is free |
    | saved rows | `copy_rows` | phases of the same stream | let go of, in stream order |
    """

    def __init__(self, device: Device, stream: Stream, max_rows: int) -> None:
        self.rows = 0
        """Rows spilled since start."""
        self._device = device
        self._stream = stream
        self._max_rows = max_rows
        self._uploader = Uploader(device, stream, max_rows, _RING)

    @property
    def ready(self) -> bool:
        """Whether `save` or `spill` may be called now."""
        return self._uploader.ready

    def save(self, pages: Tensor, slots: NDArray[np.int64]) -> Tensor:
        """The rows at `slots` (int64 `[n]`, at most `max_rows` of them), copied: `[n, width]`."""
        (slots_n,) = self._uploader.send([slots])
        out = self._device.empty((slots.size, pages.shape[-1]), pages.dtype, self._stream)
        self._device.launch(self._stream, copy_rows, pages, slots_n, out)
        return out

    def spill(self, slices: Iterable[PageSlice]) -> list["SpilledSlice"]:
        """Gives slices of one buffer a new place, as many as one copy takes. Returns those."""
        taken: list[PageSlice] = []
        count = 0
        for part in slices:
            if count + part.slots.size > self._max_rows:
                break
            taken.append(part)
            count += part.slots.size
        if not taken:
            return []
        rows = self.save(taken[0].pages, np.concatenate([part.slots for part in taken]))
        moved = self._device.record(self._stream)
        self.rows += count
        spilled = []
        start = 0
        for part in taken:
            end = start + part.slots.size
            spilled.append(SpilledSlice(part, rows, part.relocate(rows[None], np.arange(start, end), moved)))
            start = end
        return spilled


def copy_rows(pages: Tensor, slots_n: Tensor, out_nD: Tensor) -> None:
    torch.index_select(pages.flatten(0, 1), 0, slots_n, out=out_nD)
