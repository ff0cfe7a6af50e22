"""Modules for vocoders. The output for a piece of a stream equals that part of the output for the whole stream."""

from omni_vocoder.layers.stream_layer import CausalConv, CausalTransposedConv, Residual, Serial, StreamLayer
from omni_vocoder.layers.transformer import GatedMLP, RMSNorm, WindowShape, WindowTransformer, window_shape
from omni_vocoder.layers.upsampling import (
    ConvNeXtBlock,
    SnakeBeta,
    SnakeUpsampling,
    UpsamplingRates,
    convnext_upsampling,
    snake_decoder,
)

__all__ = [
    "CausalConv",
    "CausalTransposedConv",
    "ConvNeXtBlock",
    "GatedMLP",
    "RMSNorm",
    "Residual",
    "Serial",
    "SnakeBeta",
    "SnakeUpsampling",
    "StreamLayer",
    "UpsamplingRates",
    "WindowShape",
    "WindowTransformer",
    "convnext_upsampling",
    "snake_decoder",
    "window_shape",
]
