"""Where the patches of a picture are: all that the vision tower computes from its size.

Patches come in blocks that are merged into one embedding, row by row within a block. Shape legend: N patches of a frame, P of a
batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Patches:
    """positions_N2: int64, row and column. taps_N4, weights_N4: int64 and float32, what a patch's position embedding is made of:
    its neighbours in the learned grid. Shared, so not to be written."""

    positions_N2: NDArray[np.int64]
    taps_N4: NDArray[np.int64]
    weights_N4: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class VisionBatch:
    """The same of a batch, its frames one behind the other. segments: patches of each frame."""

    positions_P2: NDArray[np.int64]
    taps_P4: NDArray[np.int64]
    weights_P4: NDArray[np.float32]
    segments: tuple[int, ...]

    def padded(self, patches: int) -> "VisionBatch":
        """With as many patches."""
        rest = ((0, patches - len(self.positions_P2)), (0, 0))
        return VisionBatch(
            np.pad(self.positions_P2, rest),
            np.pad(self.taps_P4, rest),
            np.pad(self.weights_P4, rest),
            self.segments,
        )


def lay_out_batch(grids: Sequence[tuple[int, ...]], merge: int, side: int) -> VisionBatch:
    """grids: of each picture, frames and patches down and across; merge, side: as in `lay_out`."""
    frames = [(height, width) for count, height, width in grids for _ in range(count)]
    parts = [lay_out(height, width, merge, side) for height, width in frames]
    segments = tuple(height * width for height, width in frames)
    return VisionBatch(
        np.concatenate([np.empty((0, 2), np.int64), *(part.positions_N2 for part in parts)]),
        np.concatenate([np.empty((0, 4), np.int64), *(part.taps_N4 for part in parts)]),
        np.concatenate([np.empty((0, 4), np.float32), *(part.weights_N4 for part in parts)]),
        segments,
    )


@lru_cache(maxsize=8)
def lay_out(height: int, width: int, merge: int, side: int) -> Patches:
    """height, width: patches of a frame. merge: patches along a block's side. side: of the learned grid."""
    blocks = (height // merge, width // merge, merge, merge)
    rows_N = np.broadcast_to(np.arange(height).reshape(-1, 1, merge, 1), blocks).ravel()
    columns_N = np.broadcast_to(np.arange(width).reshape(1, -1, 1, merge), blocks).ravel()
    row_taps_N2, row_weights_N2 = _interpolate(rows_N, height, side)
    column_taps_N2, column_weights_N2 = _interpolate(columns_N, width, side)
    return Patches(
        np.stack([rows_N, columns_N], axis=1),
        (row_taps_N2[:, :, None] * side + column_taps_N2[:, None]).reshape(-1, 4),
        (row_weights_N2[:, :, None] * column_weights_N2[:, None]).reshape(-1, 4),
    )


def _interpolate(places_N: NDArray[np.int64], size: int, side: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Both neighbours in a row of `side` values that is stretched from end to end over `size` places, and their weights."""
    # In float32 throughout: the weights are to be transformers' own.
    exact_N = places_N.astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
    below_N = np.floor(exact_N)
    distances_N2 = np.abs((exact_N - below_N)[:, None] - np.arange(2, dtype=np.float32))
    taps_N2 = np.minimum(below_N.astype(np.int64)[:, None] + np.arange(2), side - 1)
    return taps_N2, 1 - distances_N2
