"""What travels between stages: named tensors that stay where they were made, and one small struct that describes them."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from omni.device import COMPLETED, Event


class PageSlice:
    """Rows of a paged buffer, not yet gathered. One object from producer to consumer, so that the producer can move the rows.

    pages: `[num_blocks, block_size, width]`, on the producer's device, still being written elsewhere.
    slots: int64 `[n]`, flat row numbers (`block * block_size + offset`), in the order the consumer wants them.
    moved: done once the rows are at the present place.

    The consumer reads `pages` and `slots` when it launches a gather, and keeps neither. It reports each gather by `gathered`, also
    one that fails half-way: a release alone does not reach the producer while another input of the same payload holds the lease,
    and does not say where the rows were. `omni.stage.PayloadReceiver` does all of this.

    The producer may move the rows (`relocate`) until the payload is `released`: later gathers read the new place. It may write the
    old rows again once `moved` and the event that `relocate` returned are done.
    """

    __slots__ = ("_readers", "moved", "pages", "slots")

    def __init__(self, pages: torch.Tensor, slots: NDArray[np.int64]) -> None:
        self.pages = pages
        self.slots = slots
        self.moved: Event = COMPLETED
        self._readers: tuple[Event, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Of the rows once they are gathered: `[n, width]`."""
        return len(self.slots), self.pages.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        return self.pages.dtype

    def relocate(self, pages: torch.Tensor, slots: NDArray[np.int64], moved: Event) -> Event:
        """The rows are elsewhere once `moved` is done. Returns `reader` as it was: the end of gathers from the old place."""
        old = self.reader
        self.pages, self.slots, self.moved = pages, slots, moved
        return old

    def gathered(self, until: Event) -> None:
        """A gather of some of the rows was launched from the present place and is over when `until` is."""
        self._readers = (*(reader for reader in self._readers if not reader.done()), until)

    @property
    def reader(self) -> Event:
        """Done when every gather that was reported so far is over."""
        return _All(self._readers) if self._readers else COMPLETED

    def rows(self, slots_n: torch.Tensor) -> torch.Tensor:
        """The rows `[n, width]` at `slots_n` (the slots, as an int64 tensor on the pages' device)."""
        return self.pages.flatten(0, 1).index_select(0, slots_n)


@dataclass(frozen=True, slots=True)
class _All:
    """Done when all are."""

    events: tuple[Event, ...]

    def done(self) -> bool:
        return all(event.done() for event in self.events)


class Payload(msgspec.Struct, frozen=True):
    """One message on an edge.

    meta: says what this is; a stage kind's inputs and outputs are such structs, and adapters dispatch on their type.
    tensors: device data by name. Empty for a payload that is all on the host (tokens, finished audio).
    """

    meta: msgspec.Struct
    tensors: Mapping[str, torch.Tensor | PageSlice] = msgspec.field(default_factory=dict)
