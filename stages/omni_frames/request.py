"""Inputs and records of requests that read code frames, and the allocation of rows to them."""

from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omni.device import COMPLETED, Event
from omni.payload import PageSlice
from omni.stage import Feed


class CodeFrames(msgspec.Struct, frozen=True, kw_only=True):
    """Input: the next `count` codec frames of a request. The payload's tensor `codes`, int64, is a page slice of `count` rows of G
    code groups, or a tensor `[count, G]`. codes: int64 `[count, G]`, instead of the tensor, where the host knows them."""

    count: int
    codes: NDArray[np.int64] | None = None


@dataclass(slots=True, eq=False)
class ArrivedFrames:
    """Arrived frames that are not all copied yet. taken: number of copied ones. after: end of the last copy that reads them."""

    message: Feed
    codes: PageSlice | Tensor | NDArray[np.int64]
    count: int
    taken: int = 0
    after: Event = COMPLETED

    def release(self) -> None:
        self.message.release(self.after)


def read_arrival(message: Feed, groups: int) -> ArrivedFrames:
    """The frames of an input. groups: codes per frame. Raises ValueError for any other input."""
    meta, known = message.payload.meta, message.payload.tensors.get("codes")
    codes = meta.codes if isinstance(meta, CodeFrames) and meta.codes is not None else known
    if not isinstance(meta, CodeFrames) or codes is None:
        raise ValueError(f"CodeFrames with a tensor 'codes' are taken, not {meta!r}")
    dtype, shape = str(codes.dtype).removeprefix("torch."), list(codes.shape)
    if dtype != "int64" or shape != [meta.count, groups]:
        wanted = f"{meta.count} int64 frames of {groups} code groups"
        raise ValueError(f"codes are {dtype} {shape}; wanted {wanted}")
    return ArrivedFrames(message, codes, meta.count)


@dataclass(slots=True, eq=False)
class FrameRequest:
    """A request from `Open` to its end. order: the serving order, in which waiting requests get rows. row: its index in per-row
    device memory; None without one. live: late results of a record that is not live are dropped. start, buffered: start of the
    row's frames in its ring, and their number. paused: whether a consumer is behind; the request then starts no new work. isolated:
    whether it must run alone, since its last batch failed (`omni.stage.together`). done: number of decoded frames; samples of some
    may be in flight. in_flight: number of its batches whose samples are not on the host yet. samples: samples on the host."""

    id: str
    open_sources: set[str]
    order: tuple[int, int] = (0, 0)
    arrivals: deque[ArrivedFrames] = field(default_factory=deque)
    row: int | None = None
    live: bool = True
    start: int = 0
    buffered: int = 0
    paused: bool = False
    isolated: bool = False
    done: int = 0
    in_flight: int = 0
    samples: int = 0

    @property
    def ended(self) -> bool:
        """Whether its last frame is in the row's ring."""
        return not self.open_sources and not self.arrivals

    def forget(self, frames: int, capacity: int) -> None:
        """Removes the oldest `frames` frames from the ring; later launches must not need them."""
        self.start = (self.start + frames) % capacity
        self.buffered -= frames


RequestT = TypeVar("RequestT", bound=FrameRequest)
"""The stage's type of request record."""


class RowQueue(Generic[RequestT]):
    """Gives rows, in serving order, to requests whose first frames have arrived. A request keeps its row to its end.

    A freed row can be reused immediately: all accesses to its memory are on one stream, so new work follows the old.
    """

    def __init__(self, num_rows: int) -> None:
        self._free = list(range(num_rows - 1, -1, -1))
        self._waiting: list[RequestT] = []
        self.owners: list[RequestT] = []
        """Requests with a row, in order of allocation."""

    def join(self, request: RequestT) -> None:
        insort(self._waiting, request, key=lambda waiting: waiting.order)

    def allocate(self) -> bool:
        """Allocates free rows. Returns whether any request received one."""
        before = len(self.owners)
        while self._free and self._waiting:
            request = self._waiting.pop(0)
            request.row = self._free.pop()
            self.owners.append(request)
        return len(self.owners) > before

    def leave(self, request: RequestT) -> None:
        if request.row is not None:
            self._free.append(request.row)
            self.owners.remove(request)
            request.row = None
        elif request in self._waiting:
            self._waiting.remove(request)
