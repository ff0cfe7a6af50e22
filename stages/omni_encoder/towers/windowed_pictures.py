"""A tower for pictures most of whose layers attend within windows.

Shape legend: P patches, D width of a patch's state, N blocks.
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from omni_encoder.layers import (
    GatedPatchMLP,
    PatchEmbedding,
    PatchLayer,
    PatchMerger,
    PatchRotation,
    RMSNorm,
    SplitPatchAttention,
)
from omni_encoder.segments import Segments
from omni_encoder.towers.configs import PictureTowerConfig
from omni_encoder.towers.picture_encoder import Patches, PictureEncoder

_EPS = 1e-6


class WindowedPictureConfig(PictureTowerConfig, frozen=True, kw_only=True):
    """window_size: side of a window in pixels. fullatt_block_indexes: layers that attend within whole frames."""

    window_size: int
    fullatt_block_indexes: tuple[int, ...]


class WindowedPictureEncoder(PictureEncoder):
    """Most layers attend within windows; the tower orders the patches by window. Outputs: `embeddings` `[n, D]`."""

    def __init__(self, config: WindowedPictureConfig, max_pixels: int | None = None) -> None:
        window = config.window_size // (config.spatial_merge_size * config.patch_size)
        super().__init__(Patches.of(config, window=window), max_pixels)
        width, heads = config.hidden_size, config.num_heads
        norm = partial(RMSNorm, width, _EPS)
        self._whole = frozenset(config.fullatt_block_indexes)
        self._head_width, self._theta = width // heads, config.rope_parameters.rope_theta
        self.patch_embed = PatchEmbedding(width, config.temporal_patch_size, config.patch_size, bias=False)
        self.blocks = nn.ModuleList(
            PatchLayer(
                norm,
                SplitPatchAttention(width, heads),
                GatedPatchMLP(width, config.intermediate_size, config.hidden_act),
            )
            for _ in range(config.depth)
        )
        self.merger = PatchMerger(norm(), width, self.patches.block, config.out_hidden_size)

    def encode(self, inputs: Mapping[str, Tensor], segments: tuple[int, ...] | None) -> Mapping[str, Tensor]:
        order_N = inputs["order"]
        x_PD = self._ordered(self.patch_embed(inputs["pixels"]), order_N)
        positions_P2 = self._ordered(inputs["positions"], order_N)
        rotation = PatchRotation.of(positions_P2, self._head_width, self._theta)
        # A frame's windows are consecutive: its bounds are the same in both orders.
        frames, windows = Segments(inputs["bounds"], segments), Segments(inputs["windows"], None)
        for index, block in enumerate(self.blocks):
            x_PD = block(x_PD, rotation, frames if index in self._whole else windows)
        merged = self.merger(x_PD)
        return {"embeddings": torch.empty_like(merged).index_copy_(0, order_N, merged)}

    def _ordered(self, patches: Tensor, order_N: Tensor) -> Tensor:
        """`patches`, block by block in the order of `order_N`."""
        blocks: Tensor = patches.unflatten(0, (-1, self.patches.block))
        return blocks.index_select(0, order_N).flatten(0, 1)
