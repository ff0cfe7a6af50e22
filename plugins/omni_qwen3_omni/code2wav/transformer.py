"""The transformer in front of the decoder: sliding-window attention over codec frames.

Shapes: B rows, N new frames, P past frames kept (window - 1), D width, H heads, E head width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omni_qwen3_omni.code2wav.config import Code2WavConfig
from omni_qwen3_omni.code2wav.state import Chunk, StateLayout


class RMSNorm(nn.Module):
    """Root-mean-square normalization (Zhang and Sennrich, 2019), in float32 whatever the dtype, as in training."""

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


class Attention(nn.Module):
    """Carries the rotated keys and the values of the last P frames."""

    def __init__(self, layout: StateLayout, config: Code2WavConfig) -> None:
        super().__init__()
        width, bias, head = config.hidden_size, config.attention_bias, config.attention_head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(width, heads * head, bias=bias)
        self.k_proj = nn.Linear(width, kv_heads * head, bias=bias)
        self.v_proj = nn.Linear(width, kv_heads * head, bias=bias)
        self.o_proj = nn.Linear(heads * head, width, bias=bias)
        self.head_dim = head
        self.grouped = heads != kv_heads
        self.past_keys = layout.reserve(kv_heads, config.sliding_window - 1, head, time=1)
        self.past_values = layout.reserve(kv_heads, config.sliding_window - 1, head, time=1)

    def forward(self, hidden_BND: Tensor, rotation: tuple[Tensor, Tensor], visible: Tensor, chunk: Chunk) -> Tensor:
        query_BHNE = _rotate(self._heads(self.q_proj(hidden_BND)), *rotation)
        key_BHNE = _rotate(self._heads(self.k_proj(hidden_BND)), *rotation)
        keys = chunk.extend(self.past_keys, key_BHNE)
        values = chunk.extend(self.past_values, self._heads(self.v_proj(hidden_BND)))
        mixed_BHNE = F.scaled_dot_product_attention(query_BHNE, keys, values, visible, enable_gqa=self.grouped)
        output_BND: Tensor = self.o_proj(mixed_BHNE.transpose(1, 2).flatten(2))
        return output_BND

    def _heads(self, projected_BND: Tensor) -> Tensor:
        heads_BNHE: Tensor = projected_BND.unflatten(2, (-1, self.head_dim))
        return heads_BNHE.transpose(1, 2)


class GatedMlp(nn.Module):
    def __init__(self, config: Code2WavConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden_BND: Tensor) -> Tensor:
        output_BND: Tensor = self.down_proj(F.silu(self.gate_proj(hidden_BND)) * self.up_proj(hidden_BND))
        return output_BND


class TransformerLayer(nn.Module):
    def __init__(self, layout: StateLayout, config: Code2WavConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(layout, config)
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMlp(config)
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def forward(self, hidden_BND: Tensor, rotation: tuple[Tensor, Tensor], visible: Tensor, chunk: Chunk) -> Tensor:
        mixed_BND = self.self_attn(self.input_layernorm(hidden_BND), rotation, visible, chunk)
        hidden_BND = hidden_BND + self.self_attn_layer_scale(mixed_BND)
        refined_BND: Tensor = self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(hidden_BND)))
        return hidden_BND + refined_BND


class FrameTransformer(nn.Module):
    def __init__(self, layout: StateLayout, config: Code2WavConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(layout, config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.num_past = config.sliding_window - 1
        self.head_dim = config.attention_head_dim
        self.rope_theta = config.rope_theta

    def forward(self, hidden_BND: Tensor, chunk: Chunk) -> Tensor:
        frames = hidden_BND.shape[1]
        cos, sin = self._rotation(chunk.frames_B, frames)
        rotation = cos.to(hidden_BND.dtype), sin.to(hidden_BND.dtype)
        visible = self._visible(chunk.frames_B, frames)
        for layer in self.layers:
            hidden_BND = layer(hidden_BND, rotation, visible, chunk)
        output_BND: Tensor = self.norm(hidden_BND)
        return output_BND

    def _rotation(self, frames_B: Tensor, frames: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine `[B, 1, N, E]` of the angles of RoPE (Su et al., 2021), in float32, from absolute positions.

        The frequencies are computed here: as a buffer, a cast of the model would round them.
        """
        device = frames_B.device
        exponent_E = torch.arange(0, self.head_dim, 2, device=device, dtype=torch.float32) / self.head_dim
        position_BN = frames_B.unsqueeze(1) + torch.arange(frames, device=device)
        angle_BNE = position_BN.float().unsqueeze(2) * (1.0 / self.rope_theta**exponent_E)
        angle_BHNE = torch.cat((angle_BNE, angle_BNE), -1).unsqueeze(1)
        return angle_BHNE.cos(), angle_BHNE.sin()

    def _visible(self, frames_B: Tensor, frames: int) -> Tensor:
        """Which keys a query sees, bool `[B, 1, N, P + N]`: its own and the P before it, none before the stream."""
        key_K = torch.arange(self.num_past + frames, device=frames_B.device)
        query_N1 = torch.arange(frames, device=frames_B.device).unsqueeze(1)
        in_window_NK = (key_K >= query_N1) & (key_K <= query_N1 + self.num_past)
        in_stream_BK = key_K >= self.num_past - frames_B.unsqueeze(1)
        return (in_window_NK & in_stream_BK.unsqueeze(1)).unsqueeze(1)


def _rotate(states_BHNE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = states_BHNE.chunk(2, -1)
    return states_BHNE * cos + torch.cat((-high, low), -1) * sin
