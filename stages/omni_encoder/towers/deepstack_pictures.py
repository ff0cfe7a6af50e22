"""A tower for pictures whose states of several layers become embeddings (DeepStack; Meng et al., 2024).

Shape legend: P patches, D width of a patch's state.
"""

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from omni_encoder.layers import (
    FusedPatchAttention,
    LearnedGrid,
    PatchEmbedding,
    PatchLayer,
    PatchMerger,
    PatchMLP,
    PatchRotation,
)
from omni_encoder.segments import Segments
from omni_encoder.towers.configs import PictureTowerConfig
from omni_encoder.towers.picture_encoder import Patches, PictureEncoder

_EPS = 1e-6


class DeepstackPictureConfig(PictureTowerConfig, frozen=True, kw_only=True):
    """num_position_embeddings: places of a square grid. deepstack_visual_indexes: layers whose outputs are a level each."""

    num_position_embeddings: int
    deepstack_visual_indexes: tuple[int, ...]


class DeepstackPictureEncoder(PictureEncoder):
    """Outputs: `embeddings` `[n, D]`, `deepstack` `[levels, n, D]`; of a tower without levels, only the first."""

    def __init__(self, config: DeepstackPictureConfig, max_pixels: int | None = None) -> None:
        super().__init__(Patches.of(config, learned=math.isqrt(config.num_position_embeddings)), max_pixels)
        width, heads = config.hidden_size, config.num_heads
        norm = partial(nn.LayerNorm, width, eps=_EPS)
        self._levels = config.deepstack_visual_indexes
        self._head_width, self._theta = width // heads, config.rope_parameters.rope_theta
        self.patch_embed = PatchEmbedding(width, config.temporal_patch_size, config.patch_size, bias=True)
        self.pos_embed = LearnedGrid(config.num_position_embeddings, width)
        self.blocks = nn.ModuleList(
            PatchLayer(
                norm, FusedPatchAttention(width, heads), PatchMLP(width, config.intermediate_size, config.hidden_act)
            )
            for _ in range(config.depth)
        )
        block, outputs = self.patches.block, config.out_hidden_size
        self.merger = PatchMerger(norm(), width, block, outputs)
        self.merger_list = nn.ModuleList(
            PatchMerger(nn.LayerNorm(width * block, eps=_EPS), width, block, outputs, norms_blocks=True)
            for _ in self._levels
        )

    def encode(self, inputs: Mapping[str, Tensor], segments: tuple[int, ...] | None) -> Mapping[str, Tensor]:
        x_PD = self.patch_embed(inputs["pixels"]) + self.pos_embed(inputs["taps"], inputs["weights"])
        rotation = PatchRotation.of(inputs["positions"], self._head_width, self._theta)
        frames = Segments(inputs["bounds"], segments)
        levels = []
        for index, block in enumerate(self.blocks):
            x_PD = block(x_PD, rotation, frames)
            if index in self._levels:
                levels.append(self.merger_list[self._levels.index(index)](x_PD))
        outputs = {"embeddings": self.merger(x_PD)}
        if levels:
            outputs["deepstack"] = torch.stack(levels)
        return outputs

    def item_outputs(self, outputs: Mapping[str, Tensor], entries: slice) -> Mapping[str, Tensor]:
        # In `deepstack` the level dimension comes first.
        return {name: value[:, entries] if name == "deepstack" else value[entries] for name, value in outputs.items()}
