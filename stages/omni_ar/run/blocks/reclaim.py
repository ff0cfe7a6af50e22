"""Frees blocks after their last access, and moves payload out of blocks that are needed."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Device, Event, Stream
from omni.payload import PageSlice
from omni.stage import PayloadCopier, Produced, Transfer
from omni_ar.run.blocks.pool import BlockPool, BlockTable


class Spiller:
    """Copies entries of pages into separate memory, on the stage's stream: the next writer of the pages follows the copy. Spilled
    entries live as long as the payload whose slice refers to them; saved ones as long as the tensor, in stream order."""

    def __init__(self, device: Device, stream: Stream, max_entries: int) -> None:
        self.entries = 0
        """Number of entries spilled since start."""
        self._device = device
        self._stream = stream
        self._max_entries = max_entries
        self._copier = PayloadCopier(device, stream, max_entries)

    @property
    def ready(self) -> bool:
        return self._copier.ready

    def save(self, pages: Tensor, slots: NDArray[np.int64]) -> Tensor:
        """Returns a copy, `[n, width]`, of the entries at `slots` (int64 `[n]`, n at most `max_entries`)."""
        return self._copy(pages, slots)[0]

    def spill(self, slices: Iterable[PageSlice]) -> list[tuple[PageSlice, Event]]:
        """Moves slices of one buffer, up to one copy. Returns these, each with the end of gathers from its old place."""
        taken: list[PageSlice] = []
        count = 0
        for part in slices:
            if count + part.slots.size > self._max_entries:
                break
            taken.append(part)
            count += part.slots.size
        if not taken:
            return []
        entries, moved = self._copy(taken[0].pages, np.concatenate([part.slots for part in taken]))
        self.entries += count
        spilled, start = [], 0
        for part in taken:
            end = start + part.slots.size
            spilled.append((part, part.relocate(entries[None], np.arange(start, end), moved)))
            start = end
        return spilled

    def _copy(self, pages: Tensor, slots: NDArray[np.int64]) -> tuple[Tensor, Event]:
        out = self._device.empty((slots.size, pages.shape[-1]), pages.dtype, self._stream)
        # A separate slice: later writes of the pages follow this copy on the stream, so they wait for no reader.
        result = self._copier.copy([Transfer(PageSlice(pages, slots), out)])
        result.check()
        return out, result.end


@dataclass(slots=True, eq=False)
class _Leaving:
    """A table without its request. moved: gathers of spilled payload from the old place."""

    table: BlockTable
    moved: list[Event]

    @property
    def free(self) -> bool:
        # A long answer has thousands of payloads: a free one is not checked again.
        produced = self.table.produced
        while produced and produced[-1].free:
            produced.pop()
        gathered = all(reader.done() for reader in self.moved)
        return not produced and not self.table.unread and gathered


class Reclaimer:
    """Frees blocks after the last reader of their payload pages. The payload of steps in flight is emitted with their tokens; the
    steps need no wait: the next owner of the blocks writes them later on the same stream. Payload that a consumer has not read is
    spilled when its blocks are needed."""

    def __init__(self, pool: BlockPool, spiller: Spiller) -> None:
        self._pool = pool
        self._spiller = spiller
        self._leaving: list[_Leaving] = []
        self._spilled: list[Produced] = []
        """Spilled payloads; the page slice of each keeps its memory alive."""

    @property
    def waiting(self) -> int:
        return len(self._leaving)

    @property
    def tables(self) -> list[BlockTable]:
        return [leaving.table for leaving in self._leaving]

    @property
    def spilled(self) -> int:
        """Number of spilled payloads that consumers may still read."""
        return len(self._spilled)

    @property
    def progressing(self) -> bool:
        """Whether blocks will become free by themselves: only launched work holds them."""
        return any(all(each.released for each in leaving.table.produced) for leaving in self._leaving)

    def add_table(self, table: BlockTable) -> None:
        self._leaving.append(_Leaving(table, []))
        self.tick()

    def spill_unreleased(self) -> tuple[bool, list[tuple[str, Exception]]]:
        """Spills payload in leaving tables that a consumer has not released. Returns whether blocks became free, or will by
        themselves, and the requests whose payload could not be moved."""
        failures: list[tuple[str, Exception]] = []
        for leaving in self._leaving:
            try:
                self._spill(leaving)
            except Exception as error:
                failures.append((leaving.table.owner, error))
        return self.tick() or self.progressing, failures

    def tick(self) -> bool:
        """Frees tables without readers. Returns whether any became free."""
        self._spilled = [produced for produced in self._spilled if not produced.free]
        free = [item for item in self._leaving if item.free]
        for leaving in free:
            self._pool.release(leaving.table.blocks.tolist())
            self._leaving.remove(leaving)
        return bool(free)

    def clear(self) -> None:
        """Frees all blocks, also those with readers: the device is idle and the stage is closing."""
        while self._leaving:
            self._pool.release(self._leaving.pop().table.blocks.tolist())
        self._spilled.clear()

    def _spill(self, leaving: _Leaving) -> None:
        kept = {id(_slice(produced)): produced for produced in leaving.table.produced}
        held = [_slice(produced) for produced in kept.values() if not produced.released]
        pages: dict[int, list[PageSlice]] = {}
        for part in held:
            pages.setdefault(id(part.pages), []).append(part)
        for slices in pages.values():
            for part, reader in self._spiller.spill(slices) if self._spiller.ready else ():
                leaving.moved.append(reader)
                self._spilled.append(kept.pop(id(part)))
        leaving.table.produced = deque(kept.values())


def _slice(produced: Produced) -> PageSlice:
    (part,) = produced.payload.tensors.values()
    assert isinstance(part, PageSlice)
    return part
