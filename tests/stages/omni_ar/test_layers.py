"""Layers against transformers', with its parameter names; layers stacked over the cache against a whole model."""

from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3Model, Qwen3MoeConfig
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm

from omni.checkpoint.checks import Section
from omni.errors import CheckpointError
from omni_ar.attention import TorchPagedAttention
from omni_ar.layers import (
    Attention,
    DecoderConfig,
    DecoderLayer,
    DecoderLayers,
    FrameLayers,
    FrequencyScaling,
    GatedMLP,
    Linear,
    RMSNorm,
    RotaryEmbedding,
    SparseMoE,
    attention_windows,
    first_pass,
)
from omni_ar.layers.decoder import decoder_config
from omni_ar.model import ArModel, ArShape, Batch, NextTokens, PromptTokens
from tests.stages.omni_ar.one_row import OneRow
from tests.stages.omni_ar.two_rows import TwoRows
from tests.support.published import copy_weights, randomize

WIDTH, HEADS, KV_HEADS, HEAD_DIM, LAYERS, EPS, THETA = 24, 4, 2, 8, 3, 1e-6, 1e4


def inputs(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def attention(layer=0, **overrides):
    return Attention(WIDTH, HEADS, KV_HEADS, HEAD_DIM, **{"qk_norm_eps": EPS, "layer": layer, **overrides})


def stack(dtype=None, **overrides):
    layers = [
        DecoderLayer(
            attention(layer, dtype=dtype, **overrides),
            GatedMLP(WIDTH, 40, dtype=dtype),
            width=WIDTH,
            norm_eps=EPS,
            dtype=dtype,
        )
        for layer in range(LAYERS)
    ]
    return nn.ModuleList(layers)


@pytest.fixture(params=[False, True], ids=["no bias", "bias"])
def reference(request):
    config = Qwen3Config(
        vocab_size=8,
        hidden_size=WIDTH,
        intermediate_size=40,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        attention_bias=request.param,
        rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
    )
    return randomize(Qwen3Model(config), seed=1)


class Rows(TwoRows):
    """Two requests through layers, fed in any pieces."""

    def __init__(self, layers, dtype=torch.float32):
        super().__init__(LAYERS, KV_HEADS, HEAD_DIM, dtype)
        self.layers, self.dtype = layers, dtype
        self.rotary = RotaryEmbedding(HEAD_DIM, THETA)

    def step(self, pieces):
        """pieces: (row, x `[n, D]`, whether it is a decode), decodes first. Returns the outputs in that order."""
        counts = [len(x) for _, x, _ in pieces]
        position_T, meta = self.place([(row, len(x), is_decode) for row, x, is_decode in pieces])
        x = torch.cat([x for _, x, _ in pieces]).to(self.dtype)
        cos, sin = self.rotary(position_T[None], self.dtype)
        delta: Any = None
        for layer in self.layers:
            x, delta = layer(x, delta, cos, sin, self.cache, meta, TorchPagedAttention())
        return (x + delta).split(counts)


def test_norms_equal_the_published_ones():
    expected = randomize(Qwen3RMSNorm(WIDTH, EPS), seed=2)
    ours = RMSNorm(WIDTH, EPS).requires_grad_(False)
    ours.load_state_dict(expected.state_dict())
    for scale in (1.0, 1e-4, 1e4):
        x = inputs(5, 3, WIDTH) * scale
        torch.testing.assert_close(ours(x), expected(x), rtol=1e-6, atol=1e-6)


def test_gated_mlps_equal_the_published_ones():
    expected = randomize(Qwen3MLP(Qwen3Config(hidden_size=WIDTH, intermediate_size=40)), seed=3)
    ours = GatedMLP(WIDTH, 40).requires_grad_(False)
    copy_weights(ours, expected.state_dict())
    # One product of stacked matrices may add in another order than two.
    torch.testing.assert_close(ours(inputs(7, WIDTH)), expected(inputs(7, WIDTH)), rtol=1e-6, atol=1e-6)


def test_layers_whole_chunked_and_decoded_in_a_mixed_batch(reference):
    layers = stack(bias=reference.config.attention_bias).requires_grad_(False)
    copy_weights(layers, reference.layers.state_dict())
    first, second = inputs(11, WIDTH, seed=4), inputs(9, WIDTH, seed=5)
    rows = Rows(layers)
    parts: list[list[Tensor]] = [[], []]
    # A prompt; its decode beside the other's first chunk; beside its second chunk; both decode.
    for pieces in (
        [(0, first[:6], False)],
        [(0, first[6:7], True), (1, second[:4], False)],
        [(0, first[7:8], True), (1, second[4:7], False)],
        [(1, second[7:8], True), (0, first[8:9], True)],
        [(0, first[9:10], True), (1, second[8:9], True)],
        [(0, first[10:], True)],
    ):
        for (row, _, _), out in zip(pieces, rows.step(pieces), strict=True):
            parts[row].append(out)
    for x, part in zip((first, second), parts, strict=True):
        expected = reference(inputs_embeds=x[None]).last_hidden_state[0]
        torch.testing.assert_close(reference.norm(torch.cat(part)), expected, rtol=1e-4, atol=1e-5)


FULL, SLIDES = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, ()),
        ({"sliding_window": None}, ()),
        ({"sliding_window": 7}, (7, 7, 7)),
        ({"sliding_window": 7, "layer_types": [SLIDES, FULL, SLIDES]}, (7, None, 7)),
        ({"sliding_window": None, "layer_types": [FULL] * 3}, ()),
        ({"sliding_window": 7, "layer_types": [FULL] * 3}, ()),
        ({"sliding_window": 7, "use_sliding_window": False}, ()),
        ({"sliding_window": 7, "use_sliding_window": True}, (7, 7, 7)),
        ({"sliding_window": 40}, ()),
    ],
)
def test_windows_of_published_configs(changes, windows):
    raw = {"num_hidden_layers": 3, "max_position_embeddings": 40, **changes}
    assert attention_windows(Section(raw)) == windows


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sliding_window": 0}, "sliding_window: is 0, below 1"),
        ({"sliding_window": None, "layer_types": [SLIDES] * 3}, "sliding_window: is None, not a whole number"),
        ({"sliding_window": 7, "layer_types": [SLIDES] * 2}, "layer_types: has 2 entries"),
        ({"layer_types": [FULL, "linear_attention", FULL]}, "layer_types.1: 'linear_attention' is not supported"),
    ],
)
def test_impossible_windows_are_refused_by_field(changes, said):
    with pytest.raises(CheckpointError, match=said):
        attention_windows(Section({"num_hidden_layers": 3, "max_position_embeddings": 40, **changes}))


def test_the_decoder_of_code_groups_refuses_windows():
    with pytest.raises(CheckpointError, match="the decoder of code groups has a window"):
        FrameLayers(replace(CONFIG, attention_windows=(None,) * (CONFIG.num_layers - 1) + (4,)))


def test_gathered_rows_are_in_order_and_zero_beyond_their_length():
    rows = TwoRows(1, KV_HEADS, HEAD_DIM)
    for pages in (rows.cache.key, rows.cache.value):
        pages.fill_(float("nan"))
    lengths = torch.tensor([6, 0])
    _, meta = rows.place([(0, 6, False)])
    new_TKD = inputs(2, 6, KV_HEADS, HEAD_DIM)
    rows.cache.write(0, new_TKD[0], new_TKD[1], meta.slots_T)
    for gathered, new in zip(rows.cache.gather(0, rows.tables[:, :2], lengths), new_TKD, strict=True):
        assert gathered.shape == (2, KV_HEADS, 8, HEAD_DIM)
        assert torch.equal(gathered[0, :, :6], new.transpose(0, 1))
        assert not gathered[0, :, 6:].any()
        assert not gathered[1].any()


def test_without_query_and_key_norms_there_are_no_such_parameters():
    assert set(dict(attention(qk_norm_eps=None).named_parameters())) == {"qkv_proj.weight", "o_proj.weight"}
    rows = Rows(randomize(stack(qk_norm_eps=None), seed=6))
    x = inputs(6, WIDTH)
    chunks = [out for piece in (x[:4], x[4:]) for out in rows.step([(0, piece, False)])]
    (whole,) = rows.step([(1, x, False)])
    torch.testing.assert_close(torch.cat(chunks), whole, rtol=1e-5, atol=1e-5)


def test_layers_in_bf16_stay_near_fp32():
    wide = randomize(stack(), seed=7)
    narrow = stack(torch.bfloat16).requires_grad_(False)
    narrow.load_state_dict(wide.state_dict())
    x = inputs(10, WIDTH)
    (exact,), (rounded,) = (Rows(wide).step([(0, x, False)]), Rows(narrow, torch.bfloat16).step([(0, x, False)]))
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).norm() / exact.norm() < 0.02


def test_modules_can_be_built_on_the_meta_device():
    moe = SparseMoE(WIDTH, 16, 4, 2, True, device="meta")
    layer = DecoderLayer(attention(device="meta"), moe, width=WIDTH, norm_eps=EPS, device="meta")
    assert all(p.is_meta for p in layer.parameters())
    assert {name for name, _ in layer.named_parameters()} == {
        *(f"self_attn.{name}_proj.weight" for name in ("qkv", "o")),
        *(f"self_attn.{name}_norm.weight" for name in "qk"),
        *(f"mlp.{name}" for name in ("gate.weight", "experts_gate_up", "experts_down")),
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
    }


@pytest.mark.parametrize(("experts", "top_k"), [(4, 5), (4, 0), (8193, 2)])
def test_experts_that_no_token_could_be_sent_to_are_refused(experts: int, top_k: int):
    config = Qwen3MoeConfig(num_hidden_layers=1, num_experts=experts, num_experts_per_tok=top_k)
    with pytest.raises(CheckpointError) as caught:
        decoder_config(config)
    assert str(caught.value).startswith(
        f"config.json: num_experts_per_tok: is {top_k} of {experts} experts; use at least 1"
    )


def test_all_experts_for_every_token_are_fine():
    config = decoder_config(Qwen3MoeConfig(num_hidden_layers=1, num_experts=4, num_experts_per_tok=4))
    assert (config.num_experts, config.top_k) == (4, 4)


ROWS, GROUPS, CODES = 3, 6, 11
CPU = torch.device("cpu")


CONFIG = DecoderConfig(
    width=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    mlp_width=40,
    max_positions=64,
    rope_theta=100.0,
    rms_norm_eps=1e-5,
)
SCALED = FrequencyScaling(factor=8.0, slow_turns=0.5, fast_turns=2.0, trained_positions=32)


class Plain(ArModel):
    """The stage's layers, whose logits are the hidden states."""

    def __init__(self, shape: DecoderConfig) -> None:
        super().__init__()
        self._config = shape
        self.decoder = DecoderLayers(shape, device=CPU, dtype=torch.float32)

    @property
    def shape(self) -> ArShape:
        config = self._config
        return ArShape(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            hidden_width=config.width,
            vocab_size=config.width,
            max_positions=config.max_positions,
        )

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        return prompt.columns_CT[0]

    def embed_next(self, step: NextTokens) -> Tensor:
        return step.codes_RD

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        hidden_TD: Tensor = self.decoder(x_TD, batch)
        return hidden_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        return hidden_RD


@pytest.mark.parametrize(
    "config", [CONFIG, replace(CONFIG, qk_norm=False, rope_scaling=SCALED), replace(CONFIG, attention_bias=True)]
)
def test_each_group_is_predicted_from_all_positions_before_it(config: DecoderConfig):
    generator = torch.Generator().manual_seed(4)
    layers = FrameLayers(config, device=CPU, dtype=torch.float32)
    plain = Plain(config)
    for parameter in layers.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * (0.5 if parameter.dim() == 1 else 0.3)
    plain.decoder.load_state_dict(layers.state_dict())
    table_GCD = torch.randn(GROUPS, CODES, 24, generator=generator)
    heads = nn.ModuleList(Linear(24, CODES, bias=False, device=CPU, dtype=torch.float32) for _ in range(1, GROUPS))
    for head in heads:
        head.weight.data = torch.randn(CODES, 24, generator=generator)
    hidden_RD, code0_R = torch.randn(ROWS, 24, generator=generator), torch.tensor([3, 9, 3])
    drawn_from: list[Tensor] = []
    embedded: list[int] = []

    def draw(logits_RV: Tensor, group: int) -> Tensor:
        drawn_from.append(logits_RV.clone())
        assert len(drawn_from) == group
        return logits_RV.argmax(-1)

    def embed(code_R: Tensor, group: int) -> Tensor:
        embedded.append(group)
        return table_GCD[group, code_R]

    with torch.inference_mode():
        codes = layers.run(first_pass(hidden_RD, table_GCD[0, code0_R]), heads, draw, embed)
    codes_RG = torch.stack([code0_R, *codes], 1)
    assert embedded == list(range(1, GROUPS - 1)), "the last group's codes are no input"
    assert len(set(map(tuple, codes_RG.tolist()))) == ROWS
    for row in range(ROWS):
        x_GD = torch.stack([hidden_RD[row], *(table_GCD[group, codes_RG[row, group]] for group in range(GROUPS - 1))])
        alone = OneRow(plain)
        wanted = alone.run(x_GD[:2], torch.arange(2)[None])[1:]
        for group in range(2, GROUPS):
            wanted = torch.cat([wanted, alone.run(x_GD[group : group + 1], torch.tensor([[group]]))])
        logits = torch.stack([head.weight @ wanted_D for head, wanted_D in zip(heads, wanted, strict=True)])
        given = torch.stack([logits_RV[row] for logits_RV in drawn_from])
        torch.testing.assert_close(given, logits, rtol=1e-4, atol=1e-5)
