"""A transformer over codec frames, piece by piece: a position attends to itself and a fixed number of earlier ones,
which are part of a stream's state.

Shapes: B rows, T new positions, D width, H heads, E head width, X = H * E.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from omni.checkpoint.checks import Section
from omni_vocoder.kernels.residual_norm import Branch, residual_norm
from omni_vocoder.kernels.window_attention import AttentionInputs, attend_whole, attend_window
from omni_vocoder.state import StateLayout, StreamChunk

_MOST_WINDOW = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowShape:
    """window: positions that a position attends to, itself included. per_frame: positions of a codec frame. bias:
    whether the projections have biases."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    rope_theta: float
    per_frame: int = 1
    bias: bool = False


def window_shape(config: Section, per_frame: int = 1) -> WindowShape:
    """Reads a config of transformers. Raises CheckpointError for incompatible heads, and for scaled rotary positions."""
    heads, width = config["num_attention_heads"], config["hidden_size"]
    rope = config.part("rope_parameters")
    config.require_counts("hidden_size", "intermediate_size")
    config.require_counts("num_hidden_layers", most=1024)
    config.require_counts("sliding_window", most=_MOST_WINDOW)
    config.require_multiple("num_attention_heads", of="num_key_value_heads")
    config.require_flags("attention_bias")
    if config.get("head_dim") is not None:
        config.require_counts("head_dim", most=2**14)
    head_dim = config.get("head_dim") or width // heads
    config.require(head_dim % 2 == 0 and head_dim > 0, "head_dim", f"is odd: {head_dim}")
    rope.require_supported({"rope_type": "default"})
    rope.require_numbers("rope_theta")
    return WindowShape(
        width=width,
        heads=heads,
        kv_heads=config["num_key_value_heads"],
        head_dim=head_dim,
        window=config["sliding_window"],
        rope_theta=float(rope["rope_theta"]),
        per_frame=per_frame,
        bias=config["attention_bias"],
    )


def attention_inputs(shape: WindowShape, hidden_BTD: Tensor, chunk: StreamChunk | None) -> AttentionInputs:
    """The state of a stream that all layers read. chunk: None for a whole signal."""
    past, before_B = 0, torch.zeros(1, dtype=torch.int64, device=hidden_BTD.device)
    if chunk is not None:
        past, before_B = shape.window - 1, shape.per_frame * chunk.frames_B
    cos, sin = _rotation(shape, before_B, hidden_BTD.shape[1])
    return AttentionInputs(cos.to(hidden_BTD.dtype), sin.to(hidden_BTD.dtype), before_B, past, shape.window)


class WindowAttention(nn.Module):
    """Windowed attention. Its state is the rotated keys and the values of the last P positions."""

    def __init__(self, layout: StateLayout, shape: WindowShape) -> None:
        super().__init__()
        width, inner, kv_inner = shape.width, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(width, inner, bias=shape.bias)
        self.k_proj = nn.Linear(width, kv_inner, bias=shape.bias)
        self.v_proj = nn.Linear(width, kv_inner, bias=shape.bias)
        self.o_proj = nn.Linear(inner, width, bias=shape.bias)
        self.past_keys = layout.reserve(shape.kv_heads, shape.window - 1, shape.head_dim)
        self.past_values = layout.reserve(shape.kv_heads, shape.window - 1, shape.head_dim)

    def forward(self, hidden_BTD: Tensor, inputs: AttentionInputs, chunk: StreamChunk | None) -> Tensor:
        """`[B, T, D]` to the same shape. chunk: None for a whole signal."""
        projected = self.q_proj(hidden_BTD), self.k_proj(hidden_BTD), self.v_proj(hidden_BTD)
        if chunk is None:
            mixed_BTX = attend_whole(*projected, inputs)
        else:
            past_keys, past_values = self.past_keys.of(chunk.carried_BW), self.past_values.of(chunk.carried_BW)
            mixed_BTX = attend_window(*projected, inputs, past_keys, past_values)
        output_BTD: Tensor = self.o_proj(mixed_BTX)
        return output_BTD


def _rotation(shape: WindowShape, before_B: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine `[B, 1, T, E]` of the angles of RoPE (Su et al., 2021), from absolute positions. The frequencies are computed
    here, in float32: a cast of the model would round them in a buffer."""
    device = before_B.device
    exponent_E = torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float32) / shape.head_dim
    position_BT = before_B[:, None] + torch.arange(count, device=device)
    angle_BTE = position_BT.float()[:, :, None] * (1.0 / shape.rope_theta**exponent_E)
    angle_BHTE = torch.cat((angle_BTE, angle_BTE), -1)[:, None]
    return angle_BHTE.cos(), angle_BHTE.sin()


class RMSNorm(nn.Module):
    """Root-mean-square normalization (Zhang and Sennrich, 2019) along D, in float32 for every dtype, as in training."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        return residual_norm(hidden, self.weight, self.eps)[1]


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


def add_and_norm(hidden_BTD: Tensor, branch_BTD: Tensor, scale: LayerScale, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """The hidden states with the scaled branch added, and their norm; an `RMSNorm` is part of the same launch."""
    if type(norm) is RMSNorm:  # a subclass may compute something else
        return residual_norm(hidden_BTD, norm.weight, norm.eps, Branch(branch_BTD, scale.scale))
    hidden_BTD = hidden_BTD + scale(branch_BTD)
    return hidden_BTD, norm(hidden_BTD)


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

    def forward(
        self,
        hidden_BTD: Tensor,
        normed_BTD: Tensor,
        inputs: AttentionInputs,
        chunk: StreamChunk | None,
        next_norm: nn.Module,
    ) -> tuple[Tensor, Tensor]:
        """normed_BTD: the hidden states behind `input_layernorm`. next_norm: the norm after the layer. Returns the next hidden
        states, and their norm."""
        mixed_BTD = self.self_attn(normed_BTD, inputs, chunk)
        hidden_BTD, normed_BTD = add_and_norm(
            hidden_BTD, mixed_BTD, self.self_attn_layer_scale, self.post_attention_layernorm
        )
        return add_and_norm(hidden_BTD, self.mlp(normed_BTD), self.mlp_layer_scale, next_norm)


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
        inputs = attention_inputs(self.shape, hidden_BTD, chunk)
        norms: list[Any] = [*(layer.input_layernorm for layer in self.layers), self.norm]
        normed_BTD: Tensor = norms[0](hidden_BTD)
        for layer, next_norm in zip(self.layers, norms[1:], strict=True):
            hidden_BTD, normed_BTD = layer(hidden_BTD, normed_BTD, inputs, chunk, next_norm)
        return normed_BTD
