"""Attention within segments of a packed batch, for transformers' towers.

The towers find out the lengths of segments on the device, or hand what they were given as `cu_seqlens` to the attention function of
their configuration, if its name tells of flash attention. `use_segments` makes that function one that asks a `Segments`.

Shape legend: H heads, S positions of the batch, W width of a head.
"""

from abc import ABC, abstractmethod
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

_NAME = "omni_segments_not_flash"


class Segments(ABC):
    """What a tower is given for `cu_seqlens`."""

    @abstractmethod
    def attend(self, q_HSW: Tensor, k_HSW: Tensor, v_HSW: Tensor, scale: float) -> Tensor:
        """Attention of every position to those of its own segment: `[S, H, W]`. scale: of scores, before the softmax."""


class SplitSegments(Segments):
    """Lengths that the host knows. Neighbours of one length are attended to at once."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self._runs = [(length, len(list(run))) for length, run in groupby(lengths)]

    def attend(self, q_HSW: Tensor, k_HSW: Tensor, v_HSW: Tensor, scale: float) -> Tensor:
        parts, start = [], 0
        for length, count in self._runs:
            end = start + length * count
            q, k, v = (t[:, start:end].unflatten(1, (count, length)).transpose(0, 1) for t in (q_HSW, k_HSW, v_HSW))
            parts.append(scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).flatten(0, 1))
            start = end
        return torch.cat(parts)


class MaskedSegments(Segments):
    """Each position's segment, on the device: the work is the same whatever they are, so it can be captured."""

    def __init__(self, owners_S: Tensor, dtype: torch.dtype) -> None:
        """owners_S: positions with one number are one segment. dtype: of what is attended to."""
        apart_SS = owners_S[:, None] != owners_S
        # Once for all layers, which would each make their own of a boolean mask.
        self._bias_SS = torch.zeros(apart_SS.shape, dtype=dtype, device=owners_S.device)
        self._bias_SS.masked_fill_(apart_SS, float("-inf"))

    def attend(self, q_HSW: Tensor, k_HSW: Tensor, v_HSW: Tensor, scale: float) -> Tensor:
        q, k, v = (t.unsqueeze(0) for t in (q_HSW, k_HSW, v_HSW))
        attended = scaled_dot_product_attention(q, k, v, attn_mask=self._bias_SS[None, None], scale=scale)
        return attended[0].transpose(0, 1)


def segments_of(lengths: tuple[int, ...] | None, owners_S: Tensor | None, dtype: torch.dtype) -> Segments:
    """The host's lengths if there are any, else the numbers on the device."""
    if lengths is not None:
        return SplitSegments(lengths)
    assert owners_S is not None
    return MaskedSegments(owners_S, dtype)


def use_segments(tower: PreTrainedModel) -> None:
    """From now on `tower` takes a `Segments` for `cu_seqlens`, and any number for `max_seqlen`."""
    AttentionInterface.register(_NAME, _attend)
    # `set_attn_implementation` would look for the flash attention package.
    tower.config._attn_implementation = _NAME


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    scaling: float,
    cu_seq_lens_q: Segments,
    **_: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it: `[1, H, S, W]` in, `[1, S, H, W]` out."""
    return cu_seq_lens_q.attend(query[0], key[0], value[0], scaling).unsqueeze(0), None
