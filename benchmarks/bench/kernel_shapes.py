"""Sizes of the layers whose kernels are measured."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """A decoder layer and its vocabulary. experts 0: a plain feed-forward of `mlp_width`. shared_width: of the expert that every
    token takes, 0 for none."""

    name: str
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    mlp_width: int = 0
    experts: int = 0
    top_k: int = 0
    expert_width: int = 0
    shared_width: int = 0

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim


QWEN3_06B = LayerShape(name="0.6B", width=1024, heads=16, kv_heads=8, head_dim=128, vocab=151_936, mlp_width=3072)
THINKER = LayerShape(
    name="thinker",
    width=2048,
    heads=32,
    kv_heads=4,
    head_dim=128,
    vocab=152_064,
    experts=128,
    top_k=8,
    expert_width=768,
)
TALKER = LayerShape(
    name="talker",
    width=1024,
    heads=16,
    kv_heads=2,
    head_dim=128,
    vocab=3072,
    experts=128,
    top_k=6,
    expert_width=384,
    shared_width=768,
)
PREDICTOR = LayerShape(name="predictor", width=1024, heads=16, kv_heads=8, head_dim=128, vocab=2048, mlp_width=3072)


@dataclass(frozen=True, slots=True)
class KernelSizes:
    """rows: of decode. prompt: tokens of a prefill. length: of a row's context in decode."""

    dense: LayerShape
    thinker: LayerShape
    talker: LayerShape
    predictor: LayerShape
    rows: tuple[int, ...]
    prompt: int
    length: int


FULL = KernelSizes(QWEN3_06B, THINKER, TALKER, PREDICTOR, (1, 8, 32, 64), 2048, 640)

_TINY_DENSE = LayerShape(name="dense", width=32, heads=4, kv_heads=2, head_dim=16, vocab=97, mlp_width=48)
_TINY_MOE = LayerShape(
    name="moe", width=32, heads=4, kv_heads=2, head_dim=16, vocab=97, experts=8, top_k=2, expert_width=16
)
TINY = KernelSizes(_TINY_DENSE, _TINY_MOE, replace(_TINY_MOE, shared_width=24), _TINY_DENSE, (2,), 16, 24)
