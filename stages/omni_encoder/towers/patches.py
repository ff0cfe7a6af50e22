"""Pictures cut into patches: the values that a tower computes from a picture's size.

A block of patches is merged into one embedding; patches are ordered by block, row by row within a block. Returned
arrays are shared and must not be written.

Shape legend: P patches of a frame.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SIZES = 8
"""Number of cached picture sizes, such as those of a request or of one camera."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patches:
    """The parameters by which a tower cuts pictures.

    values: number of values of a patch. side: side of a patch in pixels. merge: patches along a block's side. learned:
    side of the learned grid from which position embeddings are interpolated; None without one. window: blocks along the
    side of a window within which some layers attend; None if all layers attend within whole frames.
    """

    values: int
    side: int
    merge: int
    learned: int | None = None
    window: int | None = None

    @classmethod
    def of(cls, tower: Any, *, learned: int | None = None, window: int | None = None) -> "Patches":
        """The parameters of a tower of transformers."""
        values = tower.patch_embed.proj.weight[0].numel()
        return cls(values=values, side=tower.patch_size, merge=tower.spatial_merge_size, learned=learned, window=window)

    @property
    def block(self) -> int:
        """Number of patches of an embedding."""
        return self.merge**2


@lru_cache(maxsize=_SIZES)
def positions(height: int, width: int, merge: int) -> NDArray[np.int64]:
    """Row and column of each patch, int64 `[P, 2]`. height, width: patches of the frame."""
    return np.stack(_places(height, width, merge), axis=1)


@lru_cache(maxsize=_SIZES)
def interpolation(height: int, width: int, merge: int, side: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The interpolation of patches' position embeddings: neighbours in a learned grid of `side` by `side`, int64 `[P,
    4]`, and their weights, float32 `[P, 4]`. height, width: patches of the frame, over which the grid is stretched from
    edge to edge."""
    rows_P, columns_P = _places(height, width, merge)
    row_taps_P2, row_weights_P2 = _stretch(rows_P, height, side)
    column_taps_P2, column_weights_P2 = _stretch(columns_P, width, side)
    return (
        (row_taps_P2[:, :, None] * side + column_taps_P2[:, None]).reshape(-1, 4),
        (row_weights_P2[:, :, None] * column_weights_P2[:, None]).reshape(-1, 4),
    )


@lru_cache(maxsize=_SIZES)
def windows(height: int, width: int, side: int) -> tuple[NDArray[np.int64], ...]:
    """The blocks of each window of a frame, int64, smaller ones at its edges. height, width: blocks of the frame."""
    blocks = np.arange(height * width).reshape(height, width)
    corners = ((top, left) for top in range(0, height, side) for left in range(0, width, side))
    return tuple(blocks[top : top + side, left : left + side].ravel() for top, left in corners)


def _places(height: int, width: int, merge: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    blocks = (height // merge, width // merge, merge, merge)
    rows_P = np.broadcast_to(np.arange(height).reshape(-1, 1, merge, 1), blocks).ravel()
    columns_P = np.broadcast_to(np.arange(width).reshape(1, -1, 1, merge), blocks).ravel()
    return rows_P, columns_P


def _stretch(places_P: NDArray[np.int64], size: int, side: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Both neighbours in a row of `side` values that is stretched from end to end over `size` places, and their weights."""
    # In float32 throughout, for the same weights as in transformers.
    exact_P = places_P.astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
    below_P = np.floor(exact_P)
    distances_P2 = np.abs((exact_P - below_P)[:, None] - np.arange(2, dtype=np.float32))
    taps_P2 = np.minimum(below_P.astype(np.int64)[:, None] + np.arange(2), side - 1)
    return taps_P2, 1 - distances_P2
