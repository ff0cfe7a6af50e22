"""The code predictor: a small decoder that runs once per code group, within one talker step.

Shape legend: R rows, T tokens of a pass, D width, G positions of a frame, W head width.
"""

import torch
from torch import Tensor, nn

from omni_ar.layers import DecoderConfig, FrameAttention, FrameCache, GatedMLP, Linear, RMSNorm, RotaryEmbedding
from omni_ar.model import Codes, DrawCode

# When the talker samples, the published model samples the other groups with these, whatever the talker uses.
_TOP_K = 50
_TOP_P = 0.8


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
            Linear(config.width, vocab_size, bias=False, device=device, dtype=dtype) for _ in range(num_groups - 1)
        )
        self.lm_head = nn.ModuleList(heads)
        self.rotary = RotaryEmbedding(config.head_dim, config.rope_theta)

    def predict(self, hidden_RD: Tensor, code0_R: Tensor, code0_RD: Tensor, draw: DrawCode) -> Codes:
        """The frame that `code0_R` (embedded: `code0_RD`) begins. Its codes' embeddings add up to the next input's codec part."""
        positions = torch.arange(self._groups, device=hidden_RD.device)
        cos, sin = self.rotary(positions[None], hidden_RD.dtype)
        cache = self.model.room(hidden_RD, self._groups)
        codes, next_RD = [code0_R], code0_RD
        # The first pass has two tokens a row, the others one: those of a row lie together.
        x_TD, start, count = torch.stack([hidden_RD, code0_RD], 1).flatten(0, 1), 0, 2
        for group in range(1, self._groups):
            last_RD = self._run(x_TD, start, cos, sin, cache)[count - 1 :: count]
            code_R = draw(self.lm_head[group - 1](last_RD), group, top_k=_TOP_K, top_p=_TOP_P)
            code_RD = self.model.codec_embedding[group - 1](code_R)
            codes.append(code_R)
            next_RD = next_RD + code_RD
            x_TD, start, count = code_RD, start + count, 1
        return Codes(torch.stack(codes, 1), next_RD)

    def embed(self, codes_RG: Tensor, embedding0_RD: Tensor) -> Tensor:
        """`Codes.next_RD` of known frames. embedding0_RD: embeddings of the first codes. Adds in the order of `predict`."""
        next_RD = embedding0_RD
        for group in range(1, codes_RG.shape[1]):
            next_RD = next_RD + self.model.codec_embedding[group - 1](codes_RG[:, group])
        return next_RD

    def _run(self, x_TD: Tensor, start: int, cos_GW: Tensor, sin_GW: Tensor, cache: list[FrameCache]) -> Tensor:
        delta_TD: Tensor | None = None
        for layer, frames in zip(self.model.layers, cache, strict=True):
            x_TD, delta_TD = layer(x_TD, delta_TD, start, cos_GW, sin_GW, frames)
        normed_TD, _ = self.model.norm.add(x_TD, delta_TD)
        return normed_TD


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

    def room(self, hidden_RD: Tensor, positions: int) -> list[FrameCache]:
        """One cache a layer."""
        return [layer.self_attn.room(hidden_RD, positions) for layer in self.layers if isinstance(layer, _Layer)]


class _Layer(nn.Module):
    """A decoder layer over the few tokens of one frame. What its last part adds is left to the next layer's norm."""

    def __init__(self, config: DecoderConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        width, eps = config.width, config.rms_norm_eps
        self.self_attn = FrameAttention(
            width,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            qk_norm_eps=eps,
            bias=config.attention_bias,
            device=device,
            dtype=dtype,
        )
        self.mlp = GatedMLP(width, config.mlp_width, device=device, dtype=dtype)
        self.input_layernorm = RMSNorm(width, eps, device=device, dtype=dtype)
        self.post_attention_layernorm = RMSNorm(width, eps, device=device, dtype=dtype)

    def forward(
        self, x_TD: Tensor, delta_TD: Tensor | None, start: int, cos_GW: Tensor, sin_GW: Tensor, frames: FrameCache
    ) -> tuple[Tensor, Tensor]:
        qkv_TX, x_TD = self.input_layernorm.into(self.self_attn.qkv_proj, x_TD, delta_TD)
        attended_TD = self.self_attn(qkv_TX, start, cos_GW, sin_GW, frames)
        delta_TD, x_TD = self.mlp.after(self.post_attention_layernorm, x_TD, attended_TD)
        return x_TD, delta_TD
