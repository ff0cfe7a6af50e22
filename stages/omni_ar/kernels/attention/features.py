"""Additions of a layer's attention to causal softmax of scaled products.

Shape legend: H query heads, D head width.
"""

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionFeatures:
    """Features of one layer; None for a feature that it does not have. Scores are computed in the order of the fields.

    scale: factor of the products of queries and keys; None for D ** -0.5.
    softcap: bounds a score to `softcap * tanh(score / softcap)` (Gemma 2, `attn_logit_softcapping`).
    alibi_slopes: float32 `[H]`, on the device. Adds `slope * (key position - query position)`, which is at most 0 (Press et al.,
    2021, arXiv:2108.12409).
    window: maximum number of keys that a token attends to, itself included (`sliding_window`). FlashAttention counts the keys
    before it: `window - 1`.
    sinks: `[H]`, on the device. A further score in the softmax of each query head, without a value (gpt-oss).

    Raises ValueError for a window or softcap that is not positive.
    """

    scale: float | None = None
    softcap: float | None = None
    alibi_slopes: Tensor | None = None
    window: int | None = None
    sinks: Tensor | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window is {self.window}: a token attends at least to itself")
        if self.softcap is not None and not self.softcap > 0:
            raise ValueError(f"softcap is {self.softcap}: scores are bounded to a positive number")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layer's features."""
        return tuple(name for name in _NAMES if getattr(self, name) is not None)

    def scale_of(self, head_dim: int) -> float:
        return 1 / math.sqrt(head_dim) if self.scale is None else self.scale


_NAMES = tuple(field.name for field in fields(AttentionFeatures))

PLAIN = AttentionFeatures()
"""The features of plain attention: none."""


def alibi_slopes(num_heads: int, device: torch.device | str | None = None) -> Tensor:
    """The published slopes, float32 `[H]`: powers of `2 ** (-8 / n)` for n heads; for a number of heads that is not a power of two,
    those of the next smaller power, then every other one of the next larger power."""
    whole = 1 << num_heads.bit_length() - 1
    slopes = [2.0 ** (-8 * (index + 1) / whole) for index in range(whole)]
    slopes += [2.0 ** (-4 * (index + 1) / whole) for index in range(0, 2 * (num_heads - whole), 2)]
    return torch.tensor(slopes, dtype=torch.float32, device=device)
