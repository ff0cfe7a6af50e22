"""Layers of towers. A forward pass reads nothing from the device, and keeps no tensor: values that depend on sizes are computed
anew.

Parameters have the names that published towers share.
"""

from omni_encoder.layers.activations import ACTIVATIONS
from omni_encoder.layers.clip_layer import ClipAttention, ClipLayer
from omni_encoder.layers.patch_attention import FusedPatchAttention, PatchAttention, SplitPatchAttention
from omni_encoder.layers.patch_layer import GatedPatchMLP, PatchLayer, PatchMLP, RMSNorm
from omni_encoder.layers.patches import LearnedGrid, PatchEmbedding, PatchMerger
from omni_encoder.layers.positions import PatchRotation, add_sinusoids

__all__ = [
    "ACTIVATIONS",
    "ClipAttention",
    "ClipLayer",
    "FusedPatchAttention",
    "GatedPatchMLP",
    "LearnedGrid",
    "PatchAttention",
    "PatchEmbedding",
    "PatchLayer",
    "PatchMLP",
    "PatchMerger",
    "PatchRotation",
    "RMSNorm",
    "SplitPatchAttention",
    "add_sinusoids",
]
