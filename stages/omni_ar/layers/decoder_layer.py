"""One pre-norm transformer layer."""

import torch
from torch import Tensor, nn

from omni_ar.attention import AttentionBackend, AttentionMetadata, KVCache
from omni_ar.layers.attention import Attention
from omni_ar.layers.norm import RMSNorm


class DecoderLayer(nn.Module):
    """Attention, then feed-forward, each on normed input and added to its residual.

    mlp: `GatedMLP`, `SparseMoE` or any other module from `[T, D]` to `[T, D]`.
    """

    def __init__(
        self,
        self_attn: Attention,
        mlp: nn.Module,
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
        cos_TW: Tensor,
        sin_TW: Tensor,
        cache: KVCache,
        meta: AttentionMetadata,
        backend: AttentionBackend,
    ) -> Tensor:
        """`[T, D]` to `[T, D]`. cos_TW, sin_TW: as `RotaryEmbedding` returns them."""
        x_TD = x_TD + self.self_attn(self.input_layernorm(x_TD), cos_TW, sin_TW, cache, meta, backend)
        y_TD: Tensor = x_TD + self.mlp(self.post_attention_layernorm(x_TD))
        return y_TD
