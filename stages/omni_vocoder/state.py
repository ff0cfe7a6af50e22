"""The state of streams, for models whose layers look back: one flat row of numbers per stream, with a part for every layer. A chunk
gathers and scatters its rows once, instead of once per layer. Shape legend: R rows of state, B rows of one batch, W numbers of a
row."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StatePart:
    """A layer's part of each row: numbers of shape `shape` from `start`, whose second dimension is the layer's past."""

    start: int
    shape: tuple[int, ...]

    @property
    def length(self) -> int:
        """Number of past positions that the layer sees, 0 or more."""
        return self.shape[1]

    def of(self, carried_BW: Tensor) -> Tensor:
        """A view `[B, *shape]` of the layer's part."""
        part: Tensor = carried_BW.narrow(1, self.start, math.prod(self.shape)).unflatten(1, self.shape)
        return part


class StateLayout:
    """Reserves the parts of a row while layers are built. width: numbers per row so far."""

    def __init__(self) -> None:
        self.width = 0

    def reserve(self, *shape: int) -> StatePart:
        part = StatePart(self.width, shape)
        self.width += math.prod(shape)
        return part


@dataclass(frozen=True, slots=True)
class StreamState:
    """The state of R streams between chunks. carried_RW: the layers' past inputs; zeros at the start of a stream. frames_R: int64,
    number of frames decoded so far."""

    carried_RW: Tensor
    frames_R: Tensor

    def reset(self, rows_B: Tensor) -> None:
        """Zeroes rows (int64, on the state's device), so that they start new streams."""
        self.carried_RW.index_fill_(0, rows_B, 0)
        self.frames_R.index_fill_(0, rows_B, 0)

    def load(self, rows_B: Tensor, first: bool) -> "StreamChunk":
        """A copy of the rows. first: whether their streams start; the copy is then zeroed."""
        if first:
            rows, width = rows_B.shape[0], self.carried_RW.shape[1]
            return StreamChunk(self.carried_RW.new_zeros(rows, width), self.frames_R.new_zeros(rows), True)
        return StreamChunk(self.carried_RW.index_select(0, rows_B), self.frames_R.index_select(0, rows_B), False)

    def store(self, rows_B: Tensor, chunk: "StreamChunk", frames: int) -> None:
        """Stores the chunk's state into the rows and advances them by `frames` frames."""
        self.carried_RW.index_copy_(0, rows_B, chunk.carried_BW)
        self.frames_R.index_copy_(0, rows_B, chunk.frames_B + frames)


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """The state of the rows of one call, updated layer by layer. frames_B: number of earlier frames. first: as in `load`."""

    carried_BW: Tensor
    frames_B: Tensor
    first: bool

    def extend(self, part: StatePart, new: Tensor) -> Tensor:
        """Returns the part's past followed by `new`, `[B, *shape]` with any length in time, and keeps its end as the new past."""
        if part.length == 0:
            return new
        past = part.of(self.carried_BW)
        joined = torch.cat((past, new), 2)
        past.copy_(joined[:, :, -part.length :])
        return joined
