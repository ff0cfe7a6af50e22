"""Layers of a diffusion transformer with time-dependent shift, scale and gate (Peebles and Xie, 2023).

Shapes as in `block_attention`; P parts of the modulation of all layers and of the final norm.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, silu

from omni_diffusion.layers.block_attention import BlockAttention, Surroundings

LAYER_PARTS = 6
"""Parts of a layer's modulation: shift, scale and gate, for its attention and for its feed-forward part."""


class Modulation(nn.Module):
    """Parameters of the time-dependent modulation of a norm and of the branch behind it: `parts` vectors."""

    def __init__(self, width: int, parts: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, parts * width)


class FeedForward(nn.Module):
    """first: `[T, D]` to `[T, inner]`. last: `[T, inner]` to `[T, D]`."""

    def __init__(self, first: nn.Module, last: nn.Module) -> None:
        super().__init__()
        # Numbered as published: between them lie an activation and a dropout.
        self.ff = nn.ModuleDict({"0": first, "3": last})

    def forward(self, x_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.ff["3"](gelu(self.ff["0"](x_TD), approximate="tanh"))
        return y_TD


class ModulatedLayer(nn.Module):
    """Attention of blocks and a feed-forward part, as residual branches."""

    def __init__(self, width: int, attention: BlockAttention, feed_forward: FeedForward) -> None:
        super().__init__()
        self.attn_norm = Modulation(width, LAYER_PARTS)
        self.attn = attention
        self.ff = feed_forward

    def forward(self, x_UBKFD: Tensor, parts: Sequence[Tensor], evaluation_B: Tensor, around: Surroundings) -> Tensor:
        """`[U, B, K, F, D]` to the same shape. parts: the layer's parts of `tabulate` for each row, broadcastable."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = parts
        attended = self.attn(torch.addcmul(shift, plain_norm(x_UBKFD), scale), evaluation_B, around)
        x_UBKFD = torch.addcmul(x_UBKFD, gate, attended)
        y_TD: Tensor = self.ff(torch.addcmul(mlp_shift, plain_norm(x_UBKFD), mlp_scale).flatten(0, 3))
        return torch.addcmul(x_UBKFD, mlp_gate, y_TD.view(x_UBKFD.shape))


def plain_norm(x: Tensor) -> Tensor:
    """Layer norm over the last dimension, without parameters."""
    return layer_norm(x, x.shape[-1:], eps=1e-6)


def tabulate(time_ED: Tensor, layers: Iterable[ModulatedLayer], last: Modulation) -> Tensor:
    """The modulation by the times, `[E, P, D]`: six parts of each layer, then scale and shift of the last norm. Scales
    include the 1.

    time_ED: embedded times. The result is the same for all requests, so the weights for it are freed: a second call
    fails.
    """
    norms: list[Modulation] = [*(layer.attn_norm for layer in layers), last]
    flat_EX = torch.cat([norm.linear(silu(time_ED)) for norm in norms], 1)
    table_EPD: Tensor = flat_EX.unflatten(1, (-1, time_ED.shape[1]))
    # Published scales are differences from 1.
    table_EPD[:, 1:-2:3] += 1
    table_EPD[:, -2] += 1
    for norm in norms:
        del norm.linear
    return table_EPD
