"""A transformer over codec frames with sliding-window attention, piece by piece. Shapes as in `attention`."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from omni_vocoder.layers.attention import Sight, WindowAttention, WindowShape
from omni_vocoder.state import StateLayout, StreamChunk


class RMSNorm(nn.Module):
    """Root-mean-square normalization (Zhang and Sennrich, 2019), in float32 for every dtype, as in training."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        exact = hidden.float()
        normed = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(hidden.dtype)


class LayerScale(nn.Module):
    """Learned scale of a residual branch (Touvron et al., 2021)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.scale * hidden


class GatedMLP(nn.Module):
    """SwiGLU (Shazeer, 2020), without biases."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        output_BTD: Tensor = self.down_proj(silu(self.gate_proj(hidden_BTD)) * self.up_proj(hidden_BTD))
        return output_BTD


class WindowLayer(nn.Module):
    """Norm and attention, norm and MLP, each as a scaled residual branch."""

    def __init__(
        self, layout: StateLayout, shape: WindowShape, norm: Callable[[], nn.Module], mlp: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        self.input_layernorm = norm()
        self.self_attn = WindowAttention(layout, shape)
        self.self_attn_layer_scale = LayerScale(shape.width)
        self.post_attention_layernorm = norm()
        self.mlp = mlp()
        self.mlp_layer_scale = LayerScale(shape.width)

    def forward(self, hidden_BTD: Tensor, sight: Sight, chunk: StreamChunk | None) -> Tensor:
        mixed_BTD = self.self_attn(self.input_layernorm(hidden_BTD), sight, chunk)
        hidden_BTD = hidden_BTD + self.self_attn_layer_scale(mixed_BTD)
        refined_BTD: Tensor = self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(hidden_BTD)))
        return hidden_BTD + refined_BTD


class WindowTransformer(nn.Module):
    """norm, mlp: factories of a layer's norms and MLP. final_norm: whether another norm follows the last layer."""

    def __init__(
        self,
        layout: StateLayout,
        shape: WindowShape,
        num_layers: int,
        *,
        norm: Callable[[], nn.Module],
        mlp: Callable[[], nn.Module],
        final_norm: bool = False,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(WindowLayer(layout, shape, norm, mlp) for _ in range(num_layers))
        self.norm = norm() if final_norm else nn.Identity()

    def forward(self, hidden_BTD: Tensor, chunk: StreamChunk | None) -> Tensor:
        """`[B, T, D]` to the same shape, T a multiple of `per_frame`. chunk: None for a whole signal."""
        sight = Sight.of(self.shape, hidden_BTD, chunk)
        for layer in self.layers:
            hidden_BTD = layer(hidden_BTD, sight, chunk)
        output_BTD: Tensor = self.norm(hidden_BTD)
        return output_BTD
