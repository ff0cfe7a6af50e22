"""Modules for denoisers and renderers of latents."""

from omni_diffusion.kernels.modulated_norm import GatedBranch
from omni_diffusion.layers.block_attention import AttentionContext, BlockAttention, BlockWindow
from omni_diffusion.layers.block_diffusion import BlockDenoiser, BlockDiffusion, RungeKutta
from omni_diffusion.layers.block_transformer import BlockTransformer, FeedForward, ModulatedLayer
from omni_diffusion.layers.upsampler import AliasFree, AliasFreeUpsampler, UpsamplerShape, upsampler_shape

__all__ = [
    "AliasFree",
    "AliasFreeUpsampler",
    "AttentionContext",
    "BlockAttention",
    "BlockDenoiser",
    "BlockDiffusion",
    "BlockTransformer",
    "BlockWindow",
    "FeedForward",
    "GatedBranch",
    "ModulatedLayer",
    "RungeKutta",
    "UpsamplerShape",
    "upsampler_shape",
]
