"""Common parts of both halves of the codec. Parameters have the published names without their prefix."""

from typing import Any, TypeVar

from torch import nn
from transformers.models.mimi import modeling_mimi as hf

from omni.checkpoint import load_weights
from omni.stage import StageContext
from omni_vocoder.layers import CausalConv, CausalTransposedConv, Residual, Serial, WindowShape, WindowTransformer
from omni_vocoder.state import StateLayout

HalfT = TypeVar("HalfT", bound=nn.Module)


def load(half: HalfT, context: StageContext) -> HalfT:
    """Fills a half with its part of the codec's weights, in the context's dtype, or with random ones. Returns it."""
    half.to(context.dtype)
    load_weights(half, context, {f"codec_model.{name}.": f"{name}." for name, _ in half.named_children()})
    settle_codebooks(half)
    return half


def settle_codebooks(half: nn.Module) -> None:
    """Computes the codebooks' entries after loading. A codebook would otherwise compute and keep them at its first use,
    which in a captured step is in the graph's memory. They replace the published tensors."""
    for module in half.modules():
        if isinstance(module, hf.MimiEuclideanCodebook):
            module.embed_sum = nn.Buffer(module.embed)


def transformer(layout: StateLayout, config: Any, window: WindowShape) -> WindowTransformer:
    """Builds a transformer of the codec. config: a `MimiConfig`."""
    return WindowTransformer(
        layout,
        window,
        config.num_hidden_layers,
        norm=lambda: nn.LayerNorm(config.hidden_size, eps=config.norm_eps),
        mlp=lambda: hf.MimiMLP(config),
    )


def streaming(layout: StateLayout, module: nn.Module) -> Any:
    """The streaming layers equivalent to transformers' `module`, with the same names."""
    match module:
        case hf.MimiConv1d():
            return CausalConv(layout, module.conv, module.pad_mode)
        case hf.MimiConvTranspose1d():
            return CausalTransposedConv(layout, module.conv)
        case hf.MimiResnetBlock():
            return Residual(streaming(layout, module.block), streaming(layout, module.shortcut))
        case nn.ModuleList():
            return Serial(streaming(layout, layer) for layer in module)
    return module
