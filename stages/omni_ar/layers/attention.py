"""Self-attention over a paged KV cache.

Shape legend: T tokens, D model width, H query heads, W head width, X = width of one token's queries, keys and values.
"""

from dataclasses import replace
from typing import Any, Unpack

from torch import Tensor, nn

from omni.checkpoint import Cut, Destination, StackedWeights
from omni_ar.attention import AttentionBackend, AttentionFeatures, AttentionMetadata, KVCache
from omni_ar.kernels.norm import Delta
from omni_ar.kernels.rope import HeadNorms, qk_norm_rope_write
from omni_ar.layers.linear import FactoryKwargs, RMSNorm, StackedLinear, row_linear
from omni_ar.layers.parallel import head_shard

_PLAIN = AttentionFeatures()


class AttentionProjections(nn.Module):
    """The parameters of an attention layer: `qkv_proj` (stacked), `o_proj`, and optionally `q_norm` and `k_norm`. qk_norm_eps: None
    without RMSNorm over each query and key head. bias: of all four projections; without `output_bias`, of all but the last. layer:
    index into the KV cache, if the keys and values are in one. In a partition, each rank has a part of the heads: `num_heads` and
    `num_kv_heads` count its own."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        qk_norm_eps: float | None,
        bias: bool = False,
        output_bias: bool = True,
        layer: int = 0,
        **factory: Unpack[FactoryKwargs],
    ) -> None:
        super().__init__()
        shard = self._shard = head_shard(num_heads, num_kv_heads)
        self.num_heads = shard.num_heads
        self.num_kv_heads = shard.num_kv_heads
        self.head_dim = head_dim
        self.layer = layer
        queries, kv = num_heads * head_dim, num_kv_heads * head_dim
        parts = {"q_proj": queries, "k_proj": kv, "v_proj": kv}
        cuts: dict[str, Cut] = {}
        if shard.is_cut:
            rows, kv_rows = shard.heads_cut(0, head_dim), shard.kv_heads_cut(0, head_dim)
            cuts = {"q_proj": rows, "k_proj": kv_rows, "v_proj": kv_rows}
        self.qkv_proj = StackedLinear(width, parts, bias=bias, cuts=cuts, **factory)
        columns = shard.heads_cut(1, head_dim) if shard.is_cut else None
        self.o_proj = row_linear(columns, queries, width, bias=bias and output_bias, **factory)
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if qk_norm_eps is not None:
            self.q_norm = RMSNorm(head_dim, qk_norm_eps, **factory)
            self.k_norm = RMSNorm(head_dim, qk_norm_eps, **factory)

    @property
    def is_cut(self) -> bool:
        return self._shard.is_cut

    @property
    def norms(self) -> HeadNorms | None:
        if self.q_norm is None or self.k_norm is None:
            return None
        return HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)


class Attention(AttentionProjections, StackedWeights):
    """Grouped-query attention with rotary positions and, optionally, RMSNorm over each query and key head; and with the features of
    its layer."""

    def __init__(self, *sizes: int, features: AttentionFeatures = _PLAIN, sinks: bool = False, **options: Any) -> None:
        """sizes, options: of `AttentionProjections`. features: all but sinks. sinks: whether there is a parameter `sinks` `[H]`."""
        super().__init__(*sizes, **options)
        slopes_H = features.alibi_slopes
        if self._shard.is_cut and slopes_H is not None:
            features = replace(features, alibi_slopes=slopes_H[self._shard.heads])
        self._features = features
        self.sinks = nn.Parameter(self.o_proj.weight.new_empty(self.num_heads)) if sinks else None

    @property
    def features(self) -> AttentionFeatures:
        return self._features if self.sinks is None else replace(self._features, sinks=self.sinks)

    def stacked_weights(self, name: str) -> dict[str, Destination]:
        if self.sinks is None or not self._shard.is_cut:
            return {}
        sinks = f"{name}.sinks" if name else "sinks"
        return {sinks: Destination(sinks, cut=self._shard.heads_cut(0))}

    def forward(
        self,
        qkv_TX: Tensor,
        cos_TW: Tensor,
        sin_TW: Tensor,
        cache: KVCache,
        meta: AttentionMetadata,
        backend: AttentionBackend,
    ) -> Delta:
        """Returns `[T, D]`, possibly in parts (`residual_sum`), for the output of `qkv_proj`. Fills the cache."""
        pages, prefetch = (cache.key[self.layer], cache.value[self.layer]), self.o_proj.weight
        q_THW = qk_norm_rope_write(
            qkv_TX, self.norms, cos_TW, sin_TW, self.num_heads, *pages, meta.slots_T, prefetch=prefetch
        )
        attended_TX = backend.attend(q_THW, cache, self.layer, meta, self.features).flatten(1)
        return self.o_proj.in_parts(attended_TX)
