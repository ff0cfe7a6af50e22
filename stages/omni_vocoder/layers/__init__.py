"""Modules for vocoders. The output for a piece of a stream equals that part of the output for the whole stream."""

from omni_vocoder.layers.rates import UpsamplingRates
from omni_vocoder.layers.stream_layer import CausalConv, CausalTransposedConv, Residual, Serial, StreamLayer
from omni_vocoder.layers.transformer import (
    GatedMLP,
    LayerScale,
    RMSNorm,
    Sight,
    WindowAttention,
    WindowLayer,
    WindowShape,
    WindowTransformer,
    window_shape,
)
from omni_vocoder.layers.upsampling import (
    ConvNeXtBlock,
    SnakeBeta,
    SnakeUnit,
    SnakeUpsampling,
    convnext_upsampling,
    snake_decoder,
)

__all__ = [
    "CausalConv",
    "CausalTransposedConv",
    "ConvNeXtBlock",
    "GatedMLP",
    "LayerScale",
    "RMSNorm",
    "Residual",
    "Serial",
    "Sight",
    "SnakeBeta",
    "SnakeUnit",
    "SnakeUpsampling",
    "StreamLayer",
    "UpsamplingRates",
    "WindowAttention",
    "WindowLayer",
    "WindowShape",
    "WindowTransformer",
    "convnext_upsampling",
    "snake_decoder",
    "window_shape",
]
