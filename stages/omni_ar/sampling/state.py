"""What sampling needs to know: per row on the device, and of a whole batch on the host."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags:
    """Which work at least one row of a batch needs. A needless flag costs time, a missing one changes tokens."""

    any_random: bool
    any_top_k: bool
    any_top_p: bool
    any_penalty: bool
    any_suppressed: bool


@dataclass(frozen=True, slots=True)
class SamplingState:
    """Per-row settings and history, `[rows]` or `[rows, V]`. Written when a row is admitted, `seen` by each step too.

    temperature: fp32; 0 is greedy. top_k: int64; 0 is off. top_p: float64, so that `1 - top_p` rounds as in
    transformers; 1 is off. penalty: fp32; 1 is off. seed, sample_index: int64.
    seen, suppressed: bool, ids to penalize and ids never to draw.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    penalty: Tensor
    seed: Tensor
    sample_index: Tensor
    seen: Tensor
    suppressed: Tensor

    @classmethod
    def allocate(
        cls, zeros: Callable[[tuple[int, ...], torch.dtype], Tensor], rows: int, vocab: int
    ) -> "SamplingState":
        """zeros: allocates zeroed device memory (`Device.zeros`). A row's settings mean nothing until written."""
        return cls(
            temperature=zeros((rows,), torch.float32),
            top_k=zeros((rows,), torch.int64),
            top_p=zeros((rows,), torch.float64),
            penalty=zeros((rows,), torch.float32),
            seed=zeros((rows,), torch.int64),
            sample_index=zeros((rows,), torch.int64),
            seen=zeros((rows, vocab), torch.bool),
            suppressed=zeros((rows, vocab), torch.bool),
        )
