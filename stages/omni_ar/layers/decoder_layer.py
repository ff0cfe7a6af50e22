"""One pre-norm transformer layer."""

from typing import Protocol

import torch
from torch import Tensor, nn

from omni_ar.attention import AttentionBackend, AttentionMetadata, KVCache
from omni_ar.layers.attention import Attention
from omni_ar.layers.norm import RMSNorm


class FeedForward(Protocol):
    def fused_mlp(self, norm: RMSNorm, x_TD: Tensor, delta_TD: Tensor | None) -> tuple[Tensor, Tensor]:
        """Adds `delta_TD` to the residual stream `[T, D]`, then applies norm and MLP. Returns the output and the
        stream.

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
        self_attn: Attention,
        mlp: FeedForward,
        *,
        width: int,
        norm_eps: float,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.mlp = mlp
        self.input_layernorm = RMSNorm(width, norm_eps, device=device, dtype=dtype)
        self.post_attention_layernorm = RMSNorm(width, norm_eps, device=device, dtype=dtype)

    def forward(
        self,
        x_TD: Tensor,
        delta_TD: Tensor | None,
        cos_TW: Tensor,
        sin_TW: Tensor,
        cache: KVCache,
        meta: AttentionMetadata,
        backend: AttentionBackend,
    ) -> tuple[Tensor, Tensor]:
        """Maps the residual stream and its pending addition, from the previous layer, to those of this layer.

        x_TD: `[T, D]`. delta_TD: `[T, D]`, or float32 parts `[P, T, D]` (`residual_sum`); None without a pending
        addition. cos_TW, sin_TW: as `RotaryEmbedding` returns them.
        """
        qkv_TX, x_TD = self.input_layernorm.norm_linear(self.self_attn.qkv_proj, x_TD, delta_TD)
        attended_TD = self.self_attn(qkv_TX, cos_TW, sin_TW, cache, meta, backend)
        delta_TD, x_TD = self.mlp.fused_mlp(self.post_attention_layernorm, x_TD, attended_TD)
        return x_TD, delta_TD
