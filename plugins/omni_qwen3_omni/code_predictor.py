"""The code predictor: a small decoder that runs once per code group, within one talker step."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from omni_ar.layers import DecoderConfig, GatedMLP, RMSNorm, RotaryEmbedding, apply_rotary
from omni_ar.model import Codes, DrawCode

# When the talker samples, the published model samples the other groups with these, whatever the talker uses.
_TOP_K = 50
_TOP_P = 0.8


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys and values of one layer for the frame being predicted, `[R, K, groups, head_dim]`."""

    keys: Tensor
    values: Tensor

    @classmethod
    def like(cls, layer: nn.Module, hidden_RD: Tensor, length: int) -> "_Keys":
        """Room for `length` tokens of each row, where and as `hidden_RD` is."""
        assert isinstance(layer, _Layer)
        shape = (hidden_RD.shape[0], layer.self_attn.num_kv_heads, length, layer.self_attn.head_dim)
        return cls(hidden_RD.new_empty(shape), hidden_RD.new_empty(shape))


class CodePredictor(nn.Module):
    """Predicts groups 1 to G - 1 from the talker's hidden state and the embedding of group 0.

    A frame is a sequence of its own: hidden state, code 0, code 1, ... in positions 0, 1, 2, ...; group g comes from its own head.
    """

    def __init__(
        self, config: DecoderConfig, vocab_size: int, num_groups: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self._groups = num_groups
        self.model = _Decoder(config, vocab_size, num_groups, device=device, dtype=dtype)
        heads = (
            nn.Linear(config.width, vocab_size, bias=False, device=device, dtype=dtype) for _ in range(num_groups - 1)
        )
        self.lm_head = nn.ModuleList(heads)
        self.rotary = RotaryEmbedding(config.head_dim, config.rope_theta)

    def predict(self, hidden_RD: Tensor, code0_R: Tensor, code0_RD: Tensor, draw: DrawCode) -> Codes:
        """The frame that `code0_R` (embedded: `code0_RD`) begins. Its codes' embeddings add up to the next input's codec part."""
        positions = torch.arange(self._groups, device=hidden_RD.device)
        cos, sin = self.rotary(positions[None], hidden_RD.dtype)
        cache = [_Keys.like(layer, hidden_RD, self._groups) for layer in self.model.layers]
        codes, next_RD = [code0_R], code0_RD
        x_RND, start = torch.stack([hidden_RD, code0_RD], 1), 0
        for group in range(1, self._groups):
            last_RD = self._run(x_RND, start, cos, sin, cache)[:, -1]
            code_R = draw(self.lm_head[group - 1](last_RD), group, top_k=_TOP_K, top_p=_TOP_P)
            code_RD = self.model.codec_embedding[group - 1](code_R)
            codes.append(code_R)
            next_RD = next_RD + code_RD
            start += x_RND.shape[1]
            x_RND = code_RD[:, None]
        return Codes(torch.stack(codes, 1), next_RD)

    def embed(self, codes_RG: Tensor, embedding0_RD: Tensor) -> Tensor:
        """`Codes.next_RD` of known frames. embedding0_RD: embeddings of the first codes. Adds in the order of `predict`."""
        next_RD = embedding0_RD
        for group in range(1, codes_RG.shape[1]):
            next_RD = next_RD + self.model.codec_embedding[group - 1](codes_RG[:, group])
        return next_RD

    def _run(self, x_RND: Tensor, start: int, cos: Tensor, sin: Tensor, cache: list[_Keys]) -> Tensor:
        end = start + x_RND.shape[1]
        for layer, keys in zip(self.model.layers, cache, strict=True):
            x_RND = layer(x_RND, start, cos[start:end], sin[start:end], keys)
        normed: Tensor = self.model.norm(x_RND)
        return normed


class _Decoder(nn.Module):
    """The published module `code_predictor.model`: an embedding table per predicted group, layers, final norm."""

    def __init__(
        self, config: DecoderConfig, vocab_size: int, num_groups: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        tables = (nn.Embedding(vocab_size, config.width, device=device, dtype=dtype) for _ in range(num_groups - 1))
        self.codec_embedding = nn.ModuleList(tables)
        self.layers = nn.ModuleList(_Layer(config, device=device, dtype=dtype) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.width, config.rms_norm_eps, device=device, dtype=dtype)


class _Layer(nn.Module):
    """A decoder layer over the few tokens of one frame."""

    def __init__(self, config: DecoderConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        width, eps = config.width, config.rms_norm_eps
        self.self_attn = _Attention(config, device=device, dtype=dtype)
        self.mlp = GatedMLP(width, config.mlp_width, device=device, dtype=dtype)
        self.input_layernorm = RMSNorm(width, eps, device=device, dtype=dtype)
        self.post_attention_layernorm = RMSNorm(width, eps, device=device, dtype=dtype)

    def forward(self, x_RND: Tensor, start: int, cos: Tensor, sin: Tensor, keys: _Keys) -> Tensor:
        x_RND = x_RND + self.self_attn(self.input_layernorm(x_RND), start, cos, sin, keys)
        out: Tensor = x_RND + self.mlp(self.post_attention_layernorm(x_RND))
        return out


class _Attention(nn.Module):
    def __init__(self, config: DecoderConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.num_kv_heads, self.head_dim = config.num_kv_heads, config.head_dim
        queries, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=config.attention_bias, device=device, dtype=dtype)

        self.q_proj, self.o_proj = linear(config.width, queries), linear(queries, config.width)
        self.k_proj, self.v_proj = linear(config.width, kv), linear(config.width, kv)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, device=device, dtype=dtype)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, device=device, dtype=dtype)

    def forward(self, x_RND: Tensor, start: int, cos: Tensor, sin: Tensor, cache: _Keys) -> Tensor:
        rows, count, _ = x_RND.shape
        split = (rows, count, -1, self.head_dim)
        query = apply_rotary(self.q_norm(self.q_proj(x_RND).view(split)), cos, sin)
        end = start + count
        cache.keys[:, :, start:end] = apply_rotary(self.k_norm(self.k_proj(x_RND).view(split)), cos, sin).transpose(
            1, 2
        )
        cache.values[:, :, start:end] = self.v_proj(x_RND).view(split).transpose(1, 2)
        attended = scaled_dot_product_attention(
            query.transpose(1, 2),
            cache.keys[:, :, :end],
            cache.values[:, :, :end],
            is_causal=count > 1,  # only the first pass has more than one token, and nothing before them
            enable_gqa=True,
        )
        out: Tensor = self.o_proj(attended.transpose(1, 2).reshape(rows, count, -1))
        return out
