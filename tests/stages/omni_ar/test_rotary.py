"""Rotary embeddings against transformers'."""

import pytest
import torch
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTextConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeThinkerTextRotaryEmbedding,
    apply_rotary_pos_emb,
)

from omni.errors import ConfigError
from omni_ar.kernels.rope.reference import apply_rotary
from omni_ar.layers import FrequencyScaling, RotaryEmbedding

THETA = 1e6
SECTIONS = [(128, (24, 20, 20)), (16, (4, 2, 2)), (16, (3, 3, 2)), (8, (2, 1, 1)), (32, (6, 5, 5)), (12, (0, 3, 3))]


def random_positions(axes, tokens, seed, limit=40_000):
    return torch.randint(0, limit, (axes, tokens), generator=torch.Generator().manual_seed(seed))


def published(embedding, config, head_dim, **rope):
    return embedding(config(head_dim=head_dim, rope_parameters={"rope_type": "default", "rope_theta": THETA, **rope}))


def reference(head_dim, section, positions_PT, dtype=torch.float32):
    rotary = published(
        Qwen3OmniMoeThinkerTextRotaryEmbedding, Qwen3OmniMoeTextConfig, head_dim, mrope_section=list(section)
    )
    cos, sin = rotary(torch.zeros(1, dtype=dtype), positions_PT[:, None])
    return cos[0], sin[0]


@pytest.mark.parametrize(("head_dim", "section"), SECTIONS)
@pytest.mark.parametrize(("axes", "dtype"), [(3, torch.float32), (3, torch.bfloat16), (1, torch.float32)])
def test_sections_of_three_axes_or_of_one(head_dim, section, axes, dtype):
    positions = random_positions(axes, 50, seed=head_dim)
    ours = RotaryEmbedding(head_dim, THETA, section)(positions, dtype)
    expected = reference(head_dim, section, positions.expand(3, -1), dtype)
    assert all(torch.equal(x, y) for x, y in zip(ours, expected, strict=True))


def test_positions_of_one_axis_equal_the_published_ones():
    positions = random_positions(1, 20, seed=2)
    expected = published(Qwen3RotaryEmbedding, Qwen3Config, 64)(torch.zeros(1), positions)
    ours = RotaryEmbedding(64, THETA)(positions, torch.float32)
    assert all(torch.equal(x, y[0]) for x, y in zip(ours, expected, strict=True))


def test_rotated_heads_equal_the_published_ones():
    positions = random_positions(3, 9, seed=3)
    cos, sin = RotaryEmbedding(16, THETA, (4, 2, 2))(positions, torch.float32)
    x = torch.randn(9, 5, 16, generator=torch.Generator().manual_seed(4))
    expected, _ = apply_rotary_pos_emb(x[None], x[None], cos[None], sin[None], unsqueeze_dim=2)
    assert torch.equal(apply_rotary(x, cos, sin), expected[0])


def test_tables_survive_meta_construction_and_casting():
    positions = random_positions(3, 8, seed=6)
    expected = RotaryEmbedding(16, THETA, (4, 2, 2))(positions, torch.float32)
    with torch.device("meta"):
        rotary = RotaryEmbedding(16, THETA, (4, 2, 2))
    rotary = rotary.to_empty(device="cpu").to(torch.bfloat16)
    assert all(torch.equal(x, y) for x, y in zip(rotary(positions, torch.float32), expected, strict=True))


@pytest.mark.parametrize(
    ("head_dim", "section", "field"),
    [(15, None, "head_dim"), *((16, section, "mrope_section") for section in [(4, 2), (4, 2, 3), (3, 2, 2, 1)])],
)
def test_sizes_that_do_not_fit_are_refused(head_dim, section, field):
    with pytest.raises(ConfigError, match=field):
        RotaryEmbedding(head_dim, THETA, section)


@pytest.mark.parametrize(("section", "axes"), [(None, 3), ((4, 2, 2), 2)])
def test_axes_that_the_embedding_does_not_have_are_refused(section, axes):
    with pytest.raises(ValueError, match="axes"):
        RotaryEmbedding(16, THETA, section)(random_positions(axes, 2, seed=7), torch.float32)


@pytest.mark.parametrize(("factor", "slow", "fast", "trained"), [(32.0, 0.125, 0.5, 1024), (8.0, 1.0, 4.0, 8192)])
def test_scaled_frequencies_equal_the_published_ones(factor, slow, fast, trained):
    positions = random_positions(1, 50, seed=3)
    scaling = {"factor": factor, "low_freq_factor": slow, "high_freq_factor": fast}
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "original_max_position_embeddings": trained, **scaling}
    expected = published(LlamaRotaryEmbedding, LlamaConfig, 64, **rope)(torch.zeros(1), positions)
    ours = RotaryEmbedding(
        64,
        5e5,
        scaling=FrequencyScaling(factor=factor, slow_turns=slow, fast_turns=fast, trained_positions=trained),
    )(positions, torch.float32)
    plain = RotaryEmbedding(64, 5e5)(positions, torch.float32)
    assert all(torch.equal(x, y[0]) for x, y in zip(ours, expected, strict=True))
    assert not torch.allclose(ours[0], plain[0], atol=0.1)
