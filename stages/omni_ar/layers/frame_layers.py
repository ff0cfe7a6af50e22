"""The layers of a decoder that runs once per code group, within one step of the stage's own decoder.

Shape legend: R rows, T tokens of a pass, D width, G positions of a frame, K key and value heads, H query heads, W head width, X =
width of one token's queries, keys and values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor, nn

from omni.errors import CheckpointError
from omni_ar.kernels.frame import attend_frame
from omni_ar.kernels.norm import Delta, residual_sum
from omni_ar.layers.attention import AttentionProjections
from omni_ar.layers.decoder import DecoderConfig, decoder_layer
from omni_ar.layers.linear import FactoryKwargs, Linear, RMSNorm
from omni_ar.layers.parallel import whole
from omni_ar.layers.rotary import RotaryEmbedding
from omni_ar.model import DrawCode

EmbedCode = Callable[[Tensor, int], Tensor]
"""Embeds codes `[R]` of a group as inputs of the layers, `[R, D]`."""


@dataclass(frozen=True, slots=True)
class FrameCache:
    """Keys and values of one layer, for the current frames."""

    key_RGKW: Tensor
    value_RGKW: Tensor


class FrameAttention(AttentionProjections):
    """Causal self-attention within each row's frame, with rotary positions."""

    def forward(self, qkv_TX: Tensor, start: int, cos_GW: Tensor, sin_GW: Tensor, cache: FrameCache) -> Delta:
        """Returns the pending addition to the residual stream, `[T, D]`, possibly in parts (`residual_sum`), for the
        output of `qkv_proj`.

        T = R * n: the n tokens of a row are adjacent, at positions `start` to `start + n - 1`; their keys and values
        are written into `cache`. cos_GW, sin_GW: from `RotaryEmbedding`, for positions 0 to G - 1.
        """
        attended_THW = attend_frame(
            qkv_TX, self.norms, cos_GW, sin_GW, start, self.num_heads, cache.key_RGKW, cache.value_RGKW
        )
        out_TD: Delta = self.o_proj.in_parts(attended_THW.flatten(1))
        return out_TD


class FrameLayers(nn.Module):
    """Dense layers and the final norm, with the parameter names of `DecoderLayers`. A frame is a sequence of its own: hidden state,
    code 0, code 1, ... in positions 0, 1, 2, ...; position g predicts group g. Every rank of a partition has them whole."""

    def __init__(self, config: DecoderConfig, **factory: Unpack[FactoryKwargs]) -> None:
        """config: of a dense stack. Its M-RoPE fields are ignored, since positions have one axis here.

        Raises CheckpointError for attention with a window, or another of `AttentionFeatures`.
        """
        super().__init__()
        if config.special_attention:
            problem = "the decoder of code groups has a window, scale, softcap or sinks, which it does not support"
            raise CheckpointError("config.json", problem, "use a model whose code groups have plain attention")
        # Small, and run once for each group: collectives would take longer than the work that they share.
        with whole():
            layers = [decoder_layer(config, FrameAttention, index, **factory) for index in range(config.num_layers)]
        self.layers = nn.ModuleList(layers)
        self._heads = (config.num_kv_heads, config.head_dim)
        self.norm = RMSNorm(config.width, config.rms_norm_eps, **factory)
        self.rotary = RotaryEmbedding(config.head_dim, config.rope_theta, scaling=config.rope_scaling)

    def run(self, first_TD: Tensor, heads: nn.ModuleList, draw: DrawCode, embed: EmbedCode) -> list[Tensor]:
        """Returns the codes of groups 1 to G - 1, drawn one after another. All but the last are embedded. first_TD: inputs of the
        first two positions, `[2 * R, D]` (`first_pass`). heads: a `Linear` of each of these groups."""
        groups = 1 + len(heads)
        cos_GW, sin_GW = self.rotary(torch.arange(groups, device=first_TD.device)[None], first_TD.dtype)
        shape = (first_TD.shape[0] // 2, groups, *self._heads)
        cache = [FrameCache(first_TD.new_empty(shape), first_TD.new_empty(shape)) for _ in self.layers]
        codes: list[Tensor] = []
        # The first pass has two tokens a row, the others one.
        x_TD, start, count = first_TD, 0, 2
        for group, head in enumerate(heads, start=1):
            if codes:
                x_TD, start, count = embed(codes[-1], group - 1), start + count, 1
            delta_TD: Delta | None = None
            for layer, frames in zip(self.layers, cache, strict=True):
                x_TD, delta_TD = layer(x_TD, delta_TD, start, cos_GW, sin_GW, frames)
            if count > 1:
                x_TD, delta_TD = last_positions(x_TD, delta_TD, count), None
            assert isinstance(head, Linear)
            logits_RV, _ = self.norm.norm_linear(head, x_TD, delta_TD)
            codes.append(draw(logits_RV, group))
        return codes


def last_positions(x_TD: Tensor, delta_TD: Delta | None, count: int) -> Tensor:
    """The residual stream at the last of each row's `count` positions, `[R, D]`."""
    return (x_TD if delta_TD is None else residual_sum(x_TD, delta_TD))[count - 1 :: count]


def first_pass(hidden_RD: Tensor, code0_RD: Tensor) -> Tensor:
    """The inputs of a frame's first two positions for `FrameLayers.run`: each row's hidden state and embedding of code 0."""
    return torch.stack([hidden_RD, code0_RD], 1).flatten(0, 1)
