"""Patches of pixels to states, and blocks of states to embeddings.

Shape legend: P patches, V values of a patch, D width of a patch's state, B patches of a block, N blocks, E width of an embedding.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

CHANNELS = 3
"""Red, green and blue."""


class PatchEmbedding(nn.Module):
    """`[P, V]` to `[P, D]`. depth: frames of a patch. side: pixels along its side. bias: whether the states get one."""

    def __init__(self, width: int, depth: int, side: int, *, bias: bool) -> None:
        super().__init__()
        self._shape = (CHANNELS, depth, side, side)
        self.proj = nn.Conv3d(CHANNELS, width, self._shape[1:], self._shape[1:], bias=bias)

    def forward(self, pixels_PV: Tensor) -> Tensor:
        pixels = pixels_PV.unflatten(1, self._shape).to(self.proj.weight.dtype)
        states_PD: Tensor = self.proj(pixels).flatten(1)
        return states_PD


class LearnedGrid(nn.Module):
    """Learned position embeddings of a square grid, which are interpolated. places: of the grid."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(places, width))

    def forward(self, taps_P4: Tensor, weights_P4: Tensor) -> Tensor:
        """`[P, D]`, in the dtype of the parameters; summed in float32. taps_P4: neighbours of each patch. weights_P4: their float32
        weights."""
        neighbours_P4D = embedding(taps_P4, self.weight)
        return (neighbours_P4D * weights_P4[:, :, None]).sum(1).to(self.weight.dtype)


class PatchMerger(nn.Module):
    """The states of each block, side by side, to an embedding: `[P, D]` to `[N, E]`. norm: of width D, or of width B * D if
    `norms_blocks`."""

    def __init__(self, norm: nn.Module, width: int, block: int, outputs: int, *, norms_blocks: bool = False) -> None:
        super().__init__()
        self._norms_blocks = norms_blocks
        self._width = width * block
        self.ln_q = norm
        self.mlp = nn.Sequential(nn.Linear(self._width, self._width), nn.GELU(), nn.Linear(self._width, outputs))

    def forward(self, x_PD: Tensor) -> Tensor:
        normed = self.ln_q(x_PD.view(-1, self._width) if self._norms_blocks else x_PD)
        embeddings_NE: Tensor = self.mlp(normed.view(-1, self._width))
        return embeddings_NE
