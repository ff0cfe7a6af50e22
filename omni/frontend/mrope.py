"""Multimodal rotary positions: time, height and width of every prompt token.

Source: arXiv 2409.12191, section 2.1. Text and sound advance all axes together by one; an image's tokens share one time and spread
over height and width; the next token follows the largest position used.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Grid = tuple[int, int, int]
"""Patches of an image along time, height and width, before merging."""


def mrope_positions(
    ids: NDArray[np.int64], grids: Sequence[Grid], *, image_token: int, merge: int, per_second: int
) -> tuple[NDArray[np.int64], int]:
    """Positions int64 `[3, T]` of `ids` and the position of the token after them. grids: of the images in `ids`, in order. merge:
    patches along height and width that become one token. per_second: positions between two times of an image."""
    positions = np.empty((3, len(ids)), np.int64)
    images = iter(grids)
    at, index = 0, 0
    while index < len(ids):
        if ids[index] == image_token:
            grid = _image(next(images), merge, per_second) + at
            end = index + grid.shape[1]
            positions[:, index:end] = grid
            at = int(grid.max()) + 1
        else:
            media = np.flatnonzero(ids[index:] == image_token)
            end = index + int(media[0]) if media.size else len(ids)
            positions[:, index:end] = np.arange(at, at + end - index)
            at += end - index
        index = end
    return positions, at


def _image(grid: Grid, merge: int, per_second: int) -> NDArray[np.int64]:
    time, height, width = grid[0], grid[1] // merge, grid[2] // merge
    axes = np.meshgrid(np.arange(time) * per_second, np.arange(height), np.arange(width), indexing="ij")
    return np.stack([axis.reshape(-1) for axis in axes])
