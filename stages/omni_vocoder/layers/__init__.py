"""Modules for vocoders. The output for a piece of a stream equals that part of the output for the whole stream."""

from omni_frames.snake import SnakeBeta
from omni_vocoder.layers.snake_decoder import SnakeDecoder
from omni_vocoder.layers.stream_layer import CausalConv, CausalTransposedConv, Residual, Serial, StreamLayer
from omni_vocoder.layers.transformer import GatedMLP, RMSNorm, WindowShape, WindowTransformer, window_shape
from omni_vocoder.layers.upsampling import (
    ConvNeXtBlock,
    SnakeUpsampling,
    UpsamplingRates,
    convnext_upsampling,
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
    "SnakeDecoder",
    "SnakeUpsampling",
    "StreamLayer",
    "UpsamplingRates",
    "WindowShape",
    "WindowTransformer",
    "convnext_upsampling",
    "window_shape",
]
