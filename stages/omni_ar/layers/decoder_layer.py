"""One pre-norm transformer layer."""

from typing import Protocol, Unpack

from torch import Tensor, nn

from omni_ar.layers.attention import AttentionProjections
from omni_ar.layers.linear import Factory
from omni_ar.layers.norm import RMSNorm


class FeedForward(Protocol):
    def fused_mlp(self, norm: RMSNorm, x_TD: Tensor, delta_TD: Tensor | None) -> tuple[Tensor, Tensor]:
        """Adds `delta_TD` to the residual stream `[T, D]`, then applies norm and MLP. Returns the output and the stream.

        delta_TD and the output may be in parts (`residual_sum`).
        """
        ...


class DecoderLayer(nn.Module):
    """Attention, then feed-forward, each on normalized input and added to the residual stream.

    An addition is fused with the norm that follows it, so the next layer performs a layer's last addition.

    mlp: a `GatedMLP`, `SparseMoE` or another module with `fused_mlp`.
    """

    def __init__(
        self,
        self_attn: AttentionProjections,
        mlp: FeedForward,
        *,
        width: int,
        norm_eps: float,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.mlp = mlp
        self.input_layernorm = RMSNorm(width, norm_eps, **factory)
        self.post_attention_layernorm = RMSNorm(width, norm_eps, **factory)

    def forward(self, x_TD: Tensor, delta_TD: Tensor | None, *attention: object) -> tuple[Tensor, Tensor]:
        """Maps the residual stream and its pending addition, from the previous layer, to those of this layer.

        x_TD: `[T, D]`. delta_TD: `[T, D]`, or float32 parts `[P, T, D]` (`residual_sum`); None without a pending
        addition. attention: arguments of `self_attn` behind the output of `qkv_proj`.
        """
        qkv_TX, x_TD = self.input_layernorm.norm_linear(self.self_attn.qkv_proj, x_TD, delta_TD)
        attended_TD = self.self_attn(qkv_TX, *attention)
        delta_TD, x_TD = self.mlp.fused_mlp(self.post_attention_layernorm, x_TD, attended_TD)
        return x_TD, delta_TD
