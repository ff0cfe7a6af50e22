"""Modules that models are composed of, and `residual_sum`, for access to the residual stream between two layers: the addition that
is still pending there is a `Delta`.

Parameters have the names of most published decoders, except the stacked ones: queries, keys and values; gate and up; experts.
"""

from omni_ar.kernels.embedding import summed_embeddings
from omni_ar.kernels.norm import Delta, residual_sum
from omni_ar.layers.attention import Attention, AttentionProjections
from omni_ar.layers.decoder import DecoderConfig, DecoderLayer, DecoderLayers, attention_windows, decoder_config
from omni_ar.layers.frame_layers import EmbedCode, FrameAttention, FrameCache, FrameLayers, first_pass
from omni_ar.layers.linear import GatedMLP, Linear, Projection, RMSNorm, StackedLinear
from omni_ar.layers.moe import SharedExpertMoE, SparseMoE
from omni_ar.layers.rotary import FrequencyScaling, RotaryEmbedding

__all__ = [
    "Attention",
    "AttentionProjections",
    "DecoderConfig",
    "DecoderLayer",
    "DecoderLayers",
    "Delta",
    "EmbedCode",
    "FrameAttention",
    "FrameCache",
    "FrameLayers",
    "FrequencyScaling",
    "GatedMLP",
    "Linear",
    "Projection",
    "RMSNorm",
    "RotaryEmbedding",
    "SharedExpertMoE",
    "SparseMoE",
    "StackedLinear",
    "attention_windows",
    "decoder_config",
    "first_pass",
    "residual_sum",
    "summed_embeddings",
]
