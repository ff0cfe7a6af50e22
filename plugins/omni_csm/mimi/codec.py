"""What both halves of the codec have in common."""

from typing import Any, Self

from torch import nn
from transformers.models.mimi import modeling_mimi as hf

from omni.stage import StageContext
from omni_ar.loading import load_weights
from omni_vocoder.layers import (
    CausalConv,
    CausalTransposedConv,
    Residual,
    Serial,
    WindowShape,
    WindowTransformer,
)
from omni_vocoder.state import StateLayout

PER_FRAME = 2
"""Positions of a codec frame in the transformers."""


class Codec(nn.Module):
    """config: a `MimiConfig`. Parameters have the published names, but for their prefix."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.samples_per_frame: int = config.frame_size
        self.quantizer: Any = hf.MimiSplitResidualVectorQuantizer(config)
        self.layout = StateLayout()

    def load(self, context: StageContext) -> Self:
        """Fills the half with its part of the codec's weights, in the context's dtype, or with random ones. Returns it."""
        self.to(context.dtype)
        load_weights(self, context, {f"codec_model.{name}.": f"{name}." for name, _ in self.named_children()})
        self.prepare()
        return self

    def prepare(self) -> None:
        """To be called once weights are there. A codebook makes its entries of what is published when it is first asked, and keeps
        them: in a captured step that would be in memory of the graph. They take the place of what they were made of."""
        for module in self.quantizer.modules():
            if isinstance(module, hf.MimiEuclideanCodebook):
                module.embed_sum = nn.Buffer(module.embed)

    def _transformer(self) -> WindowTransformer:
        config = self.config
        shape = WindowShape(
            width=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            window=config.sliding_window,
            rope_theta=config.rope_parameters["rope_theta"],
            per_frame=PER_FRAME,
            bias=config.attention_bias,
        )
        return WindowTransformer(
            self.layout,
            shape,
            config.num_hidden_layers,
            norm=lambda: nn.LayerNorm(config.hidden_size, eps=config.norm_eps),
            mlp=lambda: hf.MimiMLP(config),
        )

    def _streaming(self, module: nn.Module) -> Any:
        """The same layers as the framework streams them, under the same names."""
        match module:
            case hf.MimiConv1d():
                return CausalConv(self.layout, module.conv, module.pad_mode)
            case hf.MimiConvTranspose1d():
                return CausalTransposedConv(self.layout, module.conv)
            case hf.MimiResnetBlock():
                return Residual(self._streaming(module.block), self._streaming(module.shortcut))
            case nn.ModuleList():
                return Serial(self._streaming(layer) for layer in module)
        return module
