"""A transformer layer over tokens of clips. Shape legend: T tokens, D width of a token, H heads, W width of a head."""

import torch
from torch import Tensor, nn

from omni_encoder.layers.activations import ACTIVATIONS
from omni_encoder.segments import Segments

_CLAMP_MARGIN = 1000
"""Distance from the largest finite number at which float16 values are clamped, as in training."""


class ClipAttention(nn.Module):
    """Attention within segments. key_bias: whether the keys have a bias; all others have one."""

    def __init__(self, width: int, heads: int, *, key_bias: bool) -> None:
        super().__init__()
        self._heads = heads
        self._scale = (width // heads) ** -0.5
        self.k_proj = nn.Linear(width, width, bias=key_bias)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x_TD: Tensor, segments: Segments) -> Tensor:
        """`[T, D]` to the same shape."""
        q_THW, k_THW, v_THW = (
            project(x_TD).unflatten(1, (self._heads, -1)) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed_THW = segments.attend(q_THW, k_THW, v_THW, self._scale)
        output_TD: Tensor = self.out_proj(mixed_THW.flatten(1))
        return output_TD


class ClipLayer(nn.Module):
    """Norm and attention, norm and feed-forward layer, each added to its input. inner: width inside the feed-forward layer.
    activation: a name in `ACTIVATIONS`. key_bias: as in `ClipAttention`."""

    def __init__(self, width: int, heads: int, inner: int, activation: str, *, key_bias: bool) -> None:
        super().__init__()
        self._activation = ACTIVATIONS[activation]
        self.self_attn = ClipAttention(width, heads, key_bias=key_bias)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)
        self.final_layer_norm = nn.LayerNorm(width)

    def forward(self, x_TD: Tensor, segments: Segments) -> Tensor:
        """`[T, D]` to the same shape."""
        x_TD = x_TD + self.self_attn(self.self_attn_layer_norm(x_TD), segments)
        x_TD = x_TD + self.fc2(self._activation(self.fc1(self.final_layer_norm(x_TD))))
        if x_TD.dtype == torch.float16:
            most = torch.finfo(torch.float16).max - _CLAMP_MARGIN
            x_TD = x_TD.clamp(-most, most)
        return x_TD
