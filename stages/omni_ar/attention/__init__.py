"""Attention over a paged KV cache: the contract, the cache and one backend per file."""

from omni_ar.attention.base import AttentionBackend, AttentionMetadata, KVCache, PrefillRow
from omni_ar.attention.torch_paged import TorchPagedAttention
from omni_ar.attention.triton_paged import TritonPagedAttention
from omni_ar.kernels.attention.features import AttentionFeatures, alibi_slopes

__all__ = [
    "AttentionBackend",
    "AttentionFeatures",
    "AttentionMetadata",
    "KVCache",
    "PrefillRow",
    "TorchPagedAttention",
    "TritonPagedAttention",
    "alibi_slopes",
]
