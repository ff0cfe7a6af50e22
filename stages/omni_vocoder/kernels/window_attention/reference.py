"""Windowed attention in plain torch. Shape legend: see the package; besides, J = P + T."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True)
class AttentionInputs:
    """Inputs shared by all layers.

    cos_B1TE, sin_B1TE: of rotary angles, whose halves along E are equal; contiguous. before_B: int64, number of positions of the
    stream before the new ones. past: P, or 0 for a whole signal. window: positions that a position attends to.
    """

    cos_B1TE: Tensor
    sin_B1TE: Tensor
    before_B: Tensor
    past: int
    window: int

    @cached_property
    def visible(self) -> Tensor:
        """Attention mask, bool `[B, 1, T, J]`: a query sees its own key and the P before it, except those before the start of the
        stream. Made when a layer first needs it: the kernel does not."""
        device, count = self.before_B.device, self.cos_B1TE.shape[2]
        key_J, query_T1 = torch.arange(self.past + count, device=device), torch.arange(count, device=device)[:, None]
        query_T1 = query_T1 + self.past
        in_window_TJ = (key_J <= query_T1) & (key_J > query_T1 - self.window)
        in_stream_BJ = key_J >= self.past - self.before_B[:, None]
        return (in_window_TJ & in_stream_BJ[:, None])[:, None]

    def rotate(self, heads_BHTE: Tensor) -> Tensor:
        low, high = heads_BHTE.chunk(2, -1)
        return heads_BHTE * self.cos_B1TE + torch.cat((-high, low), -1) * self.sin_B1TE


def attend_whole(query_BTX: Tensor, key_BTX: Tensor, value_BTX: Tensor, inputs: AttentionInputs) -> Tensor:
    """As the package's function, for a whole signal: there is no past."""
    query, key, value = (_heads(each, inputs) for each in (query_BTX, key_BTX, value_BTX))
    return _attend(inputs.rotate(query), inputs.rotate(key), value, inputs)


def attend_window(
    query_BTX: Tensor,
    key_BTX: Tensor,
    value_BTX: Tensor,
    inputs: AttentionInputs,
    past_key_BKPE: Tensor,
    past_value_BKPE: Tensor,
) -> Tensor:
    query, key, value = (_heads(each, inputs) for each in (query_BTX, key_BTX, value_BTX))
    key, value = _extend(past_key_BKPE, inputs.rotate(key)), _extend(past_value_BKPE, value)
    return _attend(inputs.rotate(query), key, value, inputs)


def _heads(projected_BTX: Tensor, inputs: AttentionInputs) -> Tensor:
    heads_BHTE: Tensor = projected_BTX.unflatten(2, (-1, inputs.cos_B1TE.shape[3])).transpose(1, 2)
    return heads_BHTE


def _extend(past_BKPE: Tensor, new_BKTE: Tensor) -> Tensor:
    """Returns the past followed by the new, `[B, K, J, E]`, and keeps its end as the new past."""
    length = past_BKPE.shape[2]
    if not length:
        return new_BKTE
    joined_BKJE = torch.cat((past_BKPE, new_BKTE), 2)
    past_BKPE.copy_(joined_BKJE[:, :, -length:])
    return joined_BKJE


def _attend(query_BHTE: Tensor, key_BKJE: Tensor, value_BKJE: Tensor, inputs: AttentionInputs) -> Tensor:
    grouped = query_BHTE.shape[1] != key_BKJE.shape[1]
    mixed = scaled_dot_product_attention(query_BHTE, key_BKJE, value_BKJE, inputs.visible, enable_gqa=grouped)
    return mixed.transpose(1, 2).flatten(2)
