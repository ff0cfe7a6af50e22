"""Modules for denoisers and renderers of latents."""

from omni_diffusion.layers.alias_free import AliasFree
from omni_diffusion.layers.block_attention import BlockAttention, BlockWindow, History, Surroundings
from omni_diffusion.layers.block_diffusion import BlockDenoiser, BlockDiffusion
from omni_diffusion.layers.block_state import BlockState
from omni_diffusion.layers.block_transformer import BlockTransformer
from omni_diffusion.layers.modulated import LAYER_PARTS, FeedForward, ModulatedLayer, Modulation, plain_norm, tabulate
from omni_diffusion.layers.runge_kutta import RungeKutta
from omni_diffusion.layers.upsampler import AliasFreeUpsampler, ResidualBlock, UpsamplerShape, upsampler_shape

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
