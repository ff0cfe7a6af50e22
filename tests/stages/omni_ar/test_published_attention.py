"""Whole models of transformers with eager attention, and the same with their attention layers replaced by ours over a paged cache:
a window (Mistral), softcap and scale beside alternating windows (Gemma 2), sinks (gpt-oss), ALiBi (Bloom).

Shape legend: T tokens, D width, H heads, W head width.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BloomConfig,
    BloomModel,
    Gemma2Config,
    Gemma2Model,
    GptOssConfig,
    GptOssModel,
    MistralConfig,
    MistralModel,
    PreTrainedModel,
)

from omni_ar.attention import AttentionFeatures, AttentionMetadata, TorchPagedAttention, alibi_slopes
from omni_ar.layers import Attention, DecoderConfig, RotaryEmbedding, decoder_config
from omni_ar.layers.decoder import decoder_layer
from tests.stages.omni_ar.two_rows import TwoRows, load_published

VOCAB, LAYERS, HEADS, KV_HEADS, HEAD_DIM, WINDOW = 40, 3, 4, 2, 8, 5
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 64,
    "sliding_window": WINDOW,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
STEPS = [[(0, 6, False)], [(0, 1, True), (1, 9, False)], [(1, 1, True), (0, 4, False)], [(1, 1, True), (0, 1, True)]]
"""(row, number of tokens, whether it is a decode): chunks beside decodes, and windows that end within them."""
COUNTS = [12, 11]


def our_config(hf, **changes: object) -> DecoderConfig:
    """As a family reads it; the feed-forward stays that of transformers. changes: fields that the config does not contain."""
    raw = hf.to_dict() | {"hidden_act": "silu", "num_local_experts": 0}
    config = decoder_config(SimpleNamespace(to_dict=lambda: raw))
    return msgspec.structs.replace(config, qk_norm=False, **changes)


class Paged:
    """A model of transformers over a paged cache. Its tokens are flat, as those of a batch."""

    def __init__(self, model: Any, rows: TwoRows) -> None:
        self.model, self.rows = model, rows
        self.position_T: Tensor
        self.meta: AttentionMetadata

    def run(self, ids: list[Tensor]) -> list[Tensor]:
        """The hidden states of each row."""
        parts: list[list[Tensor]] = [[], []]
        for pieces in STEPS:
            begins = list(self.rows.lengths)
            self.position_T, self.meta = self.rows.place(pieces)
            ids_T = torch.cat([ids[row][begins[row] : begins[row] + count] for row, count, _ in pieces])
            places = {} if isinstance(self.model, BloomModel) else {"position_ids": self.position_T[None]}
            hidden_TD = self.model(input_ids=ids_T[None], use_cache=False, **places).last_hidden_state[0]
            for (row, _, _), part in zip(pieces, hidden_TD.split([count for _, count, _ in pieces]), strict=True):
                parts[row].append(part)
        return [torch.cat(part) for part in parts]


class OurAttention(nn.Module):
    """In place of an attention layer with rotary positions."""

    def __init__(self, paged: Paged, config: DecoderConfig, index: int, published: Any) -> None:
        super().__init__()
        ours = decoder_layer(config, Attention, index).self_attn
        assert isinstance(ours, Attention)
        load_published(ours, published.state_dict())
        self.ours, self.rotary = ours, RotaryEmbedding(config.head_dim, config.rope_theta)
        self._paged = (paged,)

    def forward(self, hidden_states: Tensor, **_: object) -> tuple[Tensor, None]:
        (paged,) = self._paged
        cos, sin = self.rotary(paged.position_T[None], torch.float32)
        qkv_TX = self.ours.qkv_proj(hidden_states[0])
        return self.ours(qkv_TX, cos, sin, paged.rows.cache, paged.meta, TorchPagedAttention())[None], None


class AlibiAttention(nn.Module):
    """In place of Bloom's."""

    def __init__(self, paged: Paged, index: int, published: Any) -> None:
        super().__init__()
        self.published, self.index = published, index
        self._paged = (paged,)

    def forward(self, hidden_states: Tensor, residual: Tensor, **_: object) -> tuple[Tensor, None]:
        (paged,) = self._paged
        features = AttentionFeatures(alibi_slopes=alibi_slopes(self.published.num_heads))
        qkv_T3HW = self.published.query_key_value(hidden_states[0]).unflatten(1, (-1, 3, self.published.head_dim))
        q_THW, k_THW, v_THW = qkv_T3HW.unbind(2)
        paged.rows.cache.write(self.index, k_THW, v_THW, paged.meta.slots_T)
        attended = TorchPagedAttention().attend(q_THW, paged.rows.cache, self.index, paged.meta, features)
        return residual + self.published.dense(attended.flatten(1)[None]), None


def mistral() -> tuple[PreTrainedModel, Callable[[Paged], None]]:
    model = MistralModel(MistralConfig(**SHAPE))
    return model, lambda paged: replace_attention(paged, our_config(model.config))


def gemma2() -> tuple[PreTrainedModel, Callable[[Paged], None]]:
    model = Gemma2Model(Gemma2Config(**SHAPE, query_pre_attn_scalar=3, attn_logit_softcapping=1.5))
    return model, lambda paged: replace_attention(paged, our_config(model.config))


def gpt_oss() -> tuple[PreTrainedModel, Callable[[Paged], None]]:
    model = GptOssModel(GptOssConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2))
    return model, lambda paged: replace_attention(paged, our_config(model.config, attention_sinks=True))


def bloom() -> tuple[PreTrainedModel, Callable[[Paged], None]]:
    """With six heads, no power of two."""
    config = BloomConfig(vocab_size=VOCAB, hidden_size=48, n_layer=LAYERS, n_head=6, pad_token_id=None)
    model: Any = BloomModel(config)

    def change(paged: Paged) -> None:
        for index, block in enumerate(model.h):
            block.self_attention = AlibiAttention(paged, index, block.self_attention)

    return model, change


def replace_attention(paged: Paged, config: DecoderConfig) -> None:
    for index, layer in enumerate(paged.model.layers):
        layer.self_attn = OurAttention(paged, config, index, layer.self_attn)


@torch.no_grad()
@pytest.mark.parametrize("build", [mistral, gemma2, gpt_oss, bloom])
def test_hidden_states_are_those_of_eager_attention(build) -> None:
    torch.manual_seed(1)
    model, change = build()
    for parameter in model.eval().parameters():
        parameter.normal_(0.0, 0.5)
    model.set_attn_implementation("eager")
    ids = [torch.randint(VOCAB, (count,)) for count in COUNTS]
    expected = [model(input_ids=row[None], use_cache=False).last_hidden_state[0] for row in ids]
    bloom_heads = isinstance(model, BloomModel)
    rows = TwoRows(LAYERS, 6 if bloom_heads else KV_HEADS, HEAD_DIM)
    paged = Paged(model, rows)
    change(paged)
    for ours, theirs in zip(paged.run(ids), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
