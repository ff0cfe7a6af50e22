"""A tower that encodes pictures, cut into patches. The values that it takes are computed from a picture's size.

A block of patches is merged into one embedding; patches are ordered by block, row by row within a block. Arrays of a size are
shared and must not be written. Shape legend: P patches of a frame.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni_encoder.layers.patches import CHANNELS
from omni_encoder.model import EncoderModel, SampleItem
from omni_encoder.plan import EncodePlan, EncoderInput
from omni_encoder.segments import bounds_input
from omni_encoder.towers.configs import PictureTowerConfig

_SIZES = 8
"""Number of cached picture sizes, such as those of a request or of one camera."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patches:
    """The parameters by which a tower cuts pictures. values: of a patch. side: of a patch in pixels. merge: patches along a block's
    side. learned: side of the learned grid from which position embeddings are interpolated; None without one. window: blocks along
    the side of a window within which some layers attend; None if all attend within whole frames."""

    values: int
    side: int
    merge: int
    learned: int | None = None
    window: int | None = None

    @classmethod
    def of(cls, config: PictureTowerConfig, *, learned: int | None = None, window: int | None = None) -> "Patches":
        values = CHANNELS * config.temporal_patch_size * config.patch_size**2
        side, merge = config.patch_size, config.spatial_merge_size
        return cls(values=values, side=side, merge=merge, learned=learned, window=window)

    @property
    def block(self) -> int:
        """Number of patches of an embedding."""
        return self.merge**2


@lru_cache(maxsize=_SIZES)
def positions(height: int, width: int, merge: int) -> NDArray[np.int64]:
    """Row and column of each patch, int64 `[P, 2]`. height, width: patches of the frame."""
    return np.stack(_rows_columns(height, width, merge), axis=1)


@lru_cache(maxsize=_SIZES)
def interpolation(height: int, width: int, merge: int, side: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The interpolation of patches' position embeddings: neighbours in a learned grid of `side` by `side`, int64 `[P, 4]`, and
    their weights, float32 `[P, 4]`. height, width: patches of the frame, over which the grid is stretched from edge to edge."""
    rows_P, columns_P = _rows_columns(height, width, merge)
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


def _rows_columns(height: int, width: int, merge: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    blocks = (height // merge, width // merge, merge, merge)
    rows_P = np.broadcast_to(np.arange(height).reshape(-1, 1, merge, 1), blocks).ravel()
    columns_P = np.broadcast_to(np.arange(width).reshape(1, -1, 1, merge), blocks).ravel()
    return rows_P, columns_P


def _stretch(indexes_P: NDArray[np.int64], size: int, side: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Both neighbours in a row of `side` values that is stretched from end to end over `size` values, and their weights."""
    # In float32 throughout, for the same weights as in transformers.
    exact_P = indexes_P.astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
    below_P = np.floor(exact_P)
    distances_P2 = np.abs((exact_P - below_P)[:, None] - np.arange(2, dtype=np.float32))
    taps_P2 = np.minimum(below_P.astype(np.int64)[:, None] + np.arange(2), side - 1)
    return taps_P2, 1 - distances_P2


_Frames = Sequence[tuple[int, int]]
"""Numbers of patches down and across, for each frame of a batch."""


class PictureEncoder(EncoderModel):
    """Items: `pixels`, float32 `[patches, values]`, and on the host `grid`, int64 `[3]`: frames, and patches down and across.

    Inputs of `encode`, which families implement: the `pixels` of all items; `positions`, int64 `[P, 2]`, the row and the column of
    each patch; `bounds` of its frame, as in `Segments`. With `Patches.learned` also `taps` and `weights`, as `interpolation` gives
    them. With `Patches.window` also `order`, int64, the blocks by window, and `windows`, the bounds of the windows in that order.
    """

    def __init__(self, patches: Patches, max_pixels: int | None = None) -> None:
        """max_pixels: of the processor."""
        super().__init__()
        self.patches = patches
        self.max_pixels = max_pixels

    def padded_length(self, items: Sequence[Mapping[str, Tensor]]) -> int | None:
        return sum(item["pixels"].shape[0] for item in items) // self.patches.block

    def plan(self, items: Sequence[Mapping[str, Tensor]], length: int | None = None) -> EncodePlan:
        block, merge = self.patches.block, self.patches.merge
        grids = [tuple(int(count) for count in item["grid"].numpy()) for item in items]
        frames = [(height, width) for count, height, width in grids for _ in range(count)]
        segments = tuple(height * width for height, width in frames)
        count = sum(segments) if length is None else length * block
        positions_of_frames = tuple(positions(height, width, merge) for height, width in frames)
        inputs = {
            "pixels": EncoderInput((count, self.patches.values), torch.float32, tuple(i["pixels"] for i in items)),
            "positions": EncoderInput((count, 2), torch.int64, positions_of_frames),
            "bounds": bounds_input(segments, count),
        }
        if self.patches.learned is not None:
            inputs |= _interpolated(frames, merge, self.patches.learned, count)
        if self.patches.window is not None:
            inputs |= _windowed([(h // merge, w // merge) for h, w in frames], self.patches.window, block, count)
        sizes = tuple(math.prod(grid) // block for grid in grids)
        return EncodePlan(inputs, sizes, segments if length is None else None)

    def largest_item(self, length: int) -> SampleItem:
        merge = self.patches.merge
        if self.max_pixels is not None:
            length = max(min(length, self.max_pixels // (merge * self.patches.side) ** 2), 1)
        height = math.isqrt(length)
        width = length // height
        grid = torch.tensor([1, height * merge, width * merge])
        pixels = torch.zeros(
            (height * width * self.patches.block, self.patches.values), dtype=torch.float32, device="cpu"
        )
        return SampleItem(height * width, {"pixels": pixels, "grid": grid})


def _interpolated(frames: _Frames, merge: int, side: int, count: int) -> dict[str, EncoderInput]:
    """count: patches of the batch."""
    found = [interpolation(height, width, merge, side) for height, width in frames]
    return {
        "taps": EncoderInput((count, 4), torch.int64, tuple(taps for taps, _ in found)),
        "weights": EncoderInput((count, 4), torch.float32, tuple(weights for _, weights in found)),
    }


def _windowed(frames: _Frames, side: int, block: int, count: int) -> dict[str, EncoderInput]:
    """The blocks' order by windows, and the windows' bounds. frames: sizes in blocks. count: patches of the batch."""
    order, lengths, start = [], [], 0
    for height, width in frames:
        parts = windows(height, width, side)
        order += [start + part for part in parts]
        lengths += [part.size * block for part in parts]
        start += height * width
    # Padding stays where it is.
    order.append(np.arange(start, count // block))
    return {"order": EncoderInput.of(np.concatenate(order)), "windows": bounds_input(lengths, count)}
