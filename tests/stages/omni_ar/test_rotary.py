"""Rotary embeddings against transformers'."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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
    """transformers' rotary embedding."""
    return embedding(config(head_dim=head_dim, rope_parameters={"rope_type": "default", "rope_theta": THETA, **rope}))


def reference(head_dim, section, positions_PT, dtype=torch.float32):
    rotary = published(
        Qwen3OmniMoeThinkerTextRotaryEmbedding, Qwen3OmniMoeTextConfig, head_dim, mrope_section=list(section)
    )
    cos, sin = rotary(torch.zeros(1, dtype=dtype), positions_PT[:, None])
    return cos[0], sin[0]


@pytest.mark.parametrize(("head_dim", "section"), SECTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_three_axes(head_dim, section, dtype):
    positions = random_positions(3, 50, seed=head_dim)
    ours = RotaryEmbedding(head_dim, THETA, section)(positions, dtype)
    expected = reference(head_dim, section, positions, dtype)
    assert all(torch.equal(x, y) for x, y in zip(ours, expected, strict=True))


@pytest.mark.parametrize(("head_dim", "section"), SECTIONS)
def test_one_axis_is_three_equal_axes(head_dim, section):
    positions = random_positions(1, 20, seed=1)
    ours = RotaryEmbedding(head_dim, THETA, section)(positions, torch.float32)
    expected = reference(head_dim, section, positions.expand(3, -1))
    assert all(torch.equal(x, y) for x, y in zip(ours, expected, strict=True))


def test_without_sections():
    positions = random_positions(1, 20, seed=2)
    expected = published(Qwen3RotaryEmbedding, Qwen3Config, 64)(torch.zeros(1), positions)
    ours = RotaryEmbedding(64, THETA)(positions, torch.float32)
    assert all(torch.equal(x, y[0]) for x, y in zip(ours, expected, strict=True))


@given(st.integers(0, 2**31))
def test_every_axis_turns_its_share_of_the_frequencies(seed):
    rotary = RotaryEmbedding(16, THETA, (4, 2, 2))
    base = random_positions(3, 1, seed, limit=1000) + 1
    cos, sin = rotary(base, torch.float32)
    for axis, share in enumerate((4, 2, 2)):
        moved = base.clone()
        moved[axis] += 1
        moved_cos, moved_sin = rotary(moved, torch.float32)
        changed = (cos != moved_cos) | (sin != moved_sin)
        assert changed.sum() == 2 * share


def test_apply():
    positions = random_positions(3, 9, seed=3)
    cos, sin = RotaryEmbedding(16, THETA, (4, 2, 2))(positions, torch.float32)
    x = torch.randn(9, 5, 16, generator=torch.Generator().manual_seed(4))
    expected, _ = apply_rotary_pos_emb(x[None], x[None], cos[None], sin[None], unsqueeze_dim=2)
    assert torch.equal(apply_rotary(x, cos, sin), expected[0])


def test_scores_depend_on_distance_alone():
    q, k = torch.randn(2, 1, 1, 32, generator=torch.Generator().manual_seed(5))
    rotary = RotaryEmbedding(32, 1e4)

    def score(query_position, key_position):
        turned = [
            apply_rotary(x, *rotary(torch.tensor([[position]]), torch.float32))
            for x, position in ((q, query_position), (k, key_position))
        ]
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(score(12, 5), score(112, 105), rtol=1e-4, atol=1e-4)
    assert (score(12, 5) - score(12, 6)).abs() > 1e-3


def test_tables_survive_meta_construction_and_casting():
    positions = random_positions(3, 8, seed=6)
    expected = RotaryEmbedding(16, THETA, (4, 2, 2))(positions, torch.float32)
    with torch.device("meta"):
        rotary = RotaryEmbedding(16, THETA, (4, 2, 2))
    rotary = rotary.to_empty(device="cpu").to(torch.bfloat16)
    assert all(torch.equal(x, y) for x, y in zip(rotary(positions, torch.float32), expected, strict=True))


@pytest.mark.parametrize("section", [(4, 2), (4, 2, 3), (3, 2, 2, 1)])
def test_sections_that_do_not_fit_are_refused(section):
    with pytest.raises(ConfigError, match="mrope_section"):
        RotaryEmbedding(16, THETA, section)


def test_an_odd_head_is_refused():
    with pytest.raises(ConfigError, match="head_dim"):
        RotaryEmbedding(15, THETA)


@pytest.mark.parametrize(("section", "axes"), [(None, 3), ((4, 2, 2), 2)])
def test_axes_that_the_embedding_does_not_have_are_refused(section, axes):
    with pytest.raises(ValueError, match="axes"):
        RotaryEmbedding(16, THETA, section)(random_positions(axes, 2, seed=7), torch.float32)


@pytest.mark.parametrize(("factor", "slow", "fast", "trained"), [(32.0, 0.125, 0.5, 1024), (8.0, 1.0, 4.0, 8192)])
def test_scaled_frequencies(factor, slow, fast, trained):
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
