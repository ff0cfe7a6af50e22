"""A tower that encodes pictures."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from omni_encoder.model import EncoderModel, SampleItem
from omni_encoder.plan import EncodePlan, EncoderInput
from omni_encoder.segments import Segments, bounds_input
from omni_encoder.towers.attention import NOT_ASKED, use_segments
from omni_encoder.towers.patches import Patches, interpolation, positions, windows

_Frames = Sequence[tuple[int, int]]
"""Numbers of patches down and across, for each frame of a batch."""


class PictureEncoder(EncoderModel):
    """Items: `pixels`, float32 `[patches, values]`, and on the host `grid`, int64 `[3]`: frames, and patches down and
    across.

    Outputs: `embeddings` `[n, D]`, and others in families that override `outputs`.
    """

    def __init__(self, tower: PreTrainedModel, patches: Patches, max_pixels: int | None = None) -> None:
        """tower: a tower of transformers that takes precomputed positions, neighbours and windows. It is modified.
        max_pixels: maximum pixels of the processor, which shrinks larger pictures; None without a maximum."""
        super().__init__()
        use_segments(tower)
        self.tower: Any = tower
        self.patches = patches
        self._max_pixels = max_pixels

    def outputs(self, out: Any) -> Mapping[str, Tensor]:
        """The embeddings of a batch by name, from what the tower returned."""
        return {"embeddings": out.pooler_output}

    def padded_length(self, items: Sequence[Mapping[str, Tensor]]) -> int | None:
        return sum(item["pixels"].shape[0] for item in items) // self.patches.block

    def plan(self, items: Sequence[Mapping[str, Tensor]], length: int | None = None) -> EncodePlan:
        block, merge = self.patches.block, self.patches.merge
        grids = [tuple(int(count) for count in item["grid"].numpy()) for item in items]
        frames = [(height, width) for count, height, width in grids for _ in range(count)]
        segments = tuple(height * width for height, width in frames)
        count = sum(segments) if length is None else length * block
        places = tuple(positions(height, width, merge) for height, width in frames)
        inputs = {
            "pixels": EncoderInput((count, self.patches.values), torch.float32, tuple(i["pixels"] for i in items)),
            "positions": EncoderInput((count, 2), torch.int64, places),
            "bounds": bounds_input(segments, count),
        }
        if self.patches.learned is not None:
            inputs |= _interpolated(frames, merge, self.patches.learned, count)
        if self.patches.window is not None:
            inputs |= _windowed([(h // merge, w // merge) for h, w in frames], self.patches.window, block, count)
        sizes = tuple(math.prod(grid) // block for grid in grids)
        return EncodePlan(inputs, sizes, segments if length is None else None)

    def encode(self, inputs: Mapping[str, Tensor], segments: tuple[int, ...] | None) -> Mapping[str, Tensor]:
        given: dict[str, Any] = {}
        if "taps" in inputs:
            given |= {"interp_indices": inputs["taps"], "interp_weights": inputs["weights"]}
        if "windows" in inputs:
            within = Segments(inputs["windows"], None)
            given |= {"window_index": inputs["order"], "cu_window_seqlens": within, "max_window_seqlen": NOT_ASKED}
        out = self.tower(
            inputs["pixels"],
            grid_thw=None,
            position_ids=inputs["positions"],
            cu_seqlens=Segments(inputs["bounds"], segments),
            max_seqlen=NOT_ASKED,
            **given,
        )
        return self.outputs(out)

    def largest_item(self, length: int) -> SampleItem:
        merge = self.patches.merge
        if self._max_pixels is not None:
            length = max(min(length, self._max_pixels // (merge * self.patches.side) ** 2), 1)
        height = math.isqrt(length)
        width = length // height
        grid = torch.tensor([1, height * merge, width * merge])
        pixels = torch.zeros((height * width * self.patches.block, self.patches.values), device="cpu")
        return SampleItem(height * width, {"pixels": pixels, "grid": grid})


def _interpolated(frames: _Frames, merge: int, side: int, count: int) -> dict[str, EncoderInput]:
    """count: patches of the batch."""
    found = [interpolation(height, width, merge, side) for height, width in frames]
    return {
        "taps": EncoderInput((count, 4), torch.int64, tuple(taps for taps, _ in found)),
        "weights": EncoderInput((count, 4), torch.float32, tuple(weights for _, weights in found)),
    }


def _windowed(frames: _Frames, side: int, block: int, count: int) -> dict[str, EncoderInput]:
    """The order of blocks by windows, and the windows' bounds. frames: sizes in blocks. count: number of patches of the
    batch."""
    order, lengths, start = [], [], 0
    for height, width in frames:
        parts = windows(height, width, side)
        order += [start + part for part in parts]
        lengths += [part.size * block for part in parts]
        start += height * width
    # Padding stays where it is.
    order.append(np.arange(start, count // block))
    return {"order": EncoderInput.of(np.concatenate(order)), "windows": bounds_input(lengths, count)}
