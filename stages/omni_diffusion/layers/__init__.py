"""Modules for denoisers and renderers of latents."""

from omni_diffusion.layers.block_attention import BlockAttention, BlockWindow, History, Surroundings
from omni_diffusion.layers.block_diffusion import BlockDenoiser, BlockDiffusion, BlockState, RungeKutta
from omni_diffusion.layers.block_transformer import (
    LAYER_PARTS,
    BlockTransformer,
    FeedForward,
    ModulatedLayer,
    Modulation,
    plain_norm,
    tabulate,
)
from omni_diffusion.layers.upsampler import (
    AliasFree,
    AliasFreeUpsampler,
    ResidualBlock,
    UpsamplerShape,
    upsampler_shape,
)

__all__ = [
    "LAYER_PARTS",
    "AliasFree",
    "AliasFreeUpsampler",
    "BlockAttention",
    "BlockDenoiser",
    "BlockDiffusion",
    "BlockState",
    "BlockTransformer",
    "BlockWindow",
    "FeedForward",
    "History",
    "ModulatedLayer",
    "Modulation",
    "ResidualBlock",
    "RungeKutta",
    "Surroundings",
    "UpsamplerShape",
    "plain_norm",
    "tabulate",
    "upsampler_shape",
]
