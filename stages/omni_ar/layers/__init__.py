"""Modules that model authors compose. Parameters bear the names most published decoders use, but experts are stacked."""

from omni_ar.layers.attention import Attention
from omni_ar.layers.decoder import DecoderConfig, DecoderLayers, decoder_config
from omni_ar.layers.decoder_layer import DecoderLayer
from omni_ar.layers.expert_weights import ExpertDestination, ExpertPart, expert_destination
from omni_ar.layers.mlp import GatedMLP
from omni_ar.layers.moe import SharedExpertMoE, SparseMoE
from omni_ar.layers.norm import RMSNorm
from omni_ar.layers.rotary import RotaryEmbedding, apply_rotary

__all__ = [
    "Attention",
    "DecoderConfig",
    "DecoderLayer",
    "DecoderLayers",
    "ExpertDestination",
    "ExpertPart",
    "GatedMLP",
    "RMSNorm",
    "RotaryEmbedding",
    "SharedExpertMoE",
    "SparseMoE",
    "apply_rotary",
    "decoder_config",
    "expert_destination",
]
