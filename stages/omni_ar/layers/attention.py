"""Self-attention over a paged KV cache.

Shape legend: T tokens, D model width, H query heads, K key and value heads, W head width.
"""

import torch
from torch import Tensor, nn

from omni_ar.attention import AttentionBackend, AttentionMetadata, KVCache
from omni_ar.layers.norm import RMSNorm
from omni_ar.layers.rotary import apply_rotary


class Attention(nn.Module):
    """Grouped-query attention with rotary positions and, if asked for, RMSNorm over each query and key head.

    qk_norm_eps: None for models without these norms. bias: of all four projections. layer: index into the KV cache.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        qk_norm_eps: float | None,
        bias: bool = False,
        layer: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.layer = layer
        self.q_proj = nn.Linear(width, num_heads * head_dim, bias=bias, device=device, dtype=dtype)
        self.k_proj = nn.Linear(width, num_kv_heads * head_dim, bias=bias, device=device, dtype=dtype)
        self.v_proj = nn.Linear(width, num_kv_heads * head_dim, bias=bias, device=device, dtype=dtype)
        self.o_proj = nn.Linear(num_heads * head_dim, width, bias=bias, device=device, dtype=dtype)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if qk_norm_eps is not None:
            self.q_norm = RMSNorm(head_dim, qk_norm_eps, device=device, dtype=dtype)
            self.k_norm = RMSNorm(head_dim, qk_norm_eps, device=device, dtype=dtype)

    def forward(
        self,
        x_TD: Tensor,
        cos_TW: Tensor,
        sin_TW: Tensor,
        cache: KVCache,
        meta: AttentionMetadata,
        backend: AttentionBackend,
    ) -> Tensor:
        """`[T, D]` to `[T, D]`; writes the tokens' keys and values into the cache."""
        heads = (-1, self.head_dim)
        q_THW = apply_rotary(self.q_norm(self.q_proj(x_TD).unflatten(-1, heads)), cos_TW, sin_TW)
        k_TKW = apply_rotary(self.k_norm(self.k_proj(x_TD).unflatten(-1, heads)), cos_TW, sin_TW)
        v_TKW = self.v_proj(x_TD).unflatten(-1, heads)
        cache.write(self.layer, k_TKW, v_TKW, meta.slots_T)
        y_TD: Tensor = self.o_proj(backend.attend(q_THW, cache, self.layer, meta).flatten(1))
        return y_TD
