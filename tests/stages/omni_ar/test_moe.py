"""Mixtures of experts against transformers', and the two ways of running experts against each other."""

import pytest
import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerTextConfig,
    Qwen3OmniMoeTextConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerTextSparseMoeBlock,
    Qwen3OmniMoeThinkerTextSparseMoeBlock,
)

from omni_ar.kernels.linear import linear
from omni_ar.kernels.moe import route
from omni_ar.kernels.moe.reference import run_every_expert, run_grouped
from omni_ar.layers import SharedExpertMoE, SparseMoE
from tests.support.published import copy_weights, randomize

# (width, intermediate): the second pair is not a multiple of 16 bytes, which grouped_mm refuses.
SIZES = [(16, 24), (10, 7)]


def published(block, config, width, intermediate, experts, top_k, norm_topk, **fields):
    made = config(
        hidden_size=width,
        moe_intermediate_size=intermediate,
        num_experts=experts,
        num_experts_per_tok=top_k,
        norm_topk_prob=norm_topk,
        hidden_act="silu",
        **fields,
    )
    made._experts_implementation = "eager"
    return randomize(block(made), seed=1)


def _published(reference):
    """Weights as a checkpoint has them: those of each expert by themselves."""
    for name, value in reference.state_dict().items():
        if not name.startswith("experts."):
            yield name, value
            continue
        parts = ("gate", "up") if "gate_up" in name else ("down",)
        for expert, matrix in enumerate(value):
            for part, piece in zip(parts, matrix.chunk(len(parts)), strict=True):
                yield f"experts.{expert}.{part}_proj.weight", piece


def copy_checkpoint(reference, ours, inside=""):
    """Loads `ours`, which may stand inside another module, from the names that a published checkpoint has."""
    model = torch.nn.ModuleDict({inside: ours}) if inside else ours
    copy_weights(model, {f"{inside}.{name}".lstrip("."): value for name, value in _published(reference)})
    return ours.requires_grad_(False)


def inputs(tokens, width, seed=0):
    return torch.randn(tokens, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("width", "intermediate"), SIZES)
@pytest.mark.parametrize("norm_topk", [True, False])
@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(8, 2, 33), (4, 4, 5), (16, 1, 3), (1, 1, 2), (6, 3, 1)])
def test_mixtures_equal_the_published_ones(width, intermediate, norm_topk, experts, top_k, tokens):
    sizes = (width, intermediate, experts, top_k, norm_topk)
    reference = published(Qwen3OmniMoeThinkerTextSparseMoeBlock, Qwen3OmniMoeTextConfig, *sizes)
    ours = copy_checkpoint(reference, SparseMoE(*sizes))
    x = inputs(tokens, width)
    torch.testing.assert_close(ours(x), reference(x[None])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("width", "intermediate"), SIZES)
def test_with_a_shared_expert(width, intermediate):
    sizes = (width, intermediate, 8, 3, True)
    shared = {"shared_expert_intermediate_size": 12}
    reference = published(Qwen3OmniMoeTalkerTextSparseMoeBlock, Qwen3OmniMoeTalkerTextConfig, *sizes, **shared)
    ours = copy_checkpoint(reference, SharedExpertMoE(*sizes, 12), inside="mlp")
    x = inputs(19, width)
    expected = reference(x[None])[0]
    torch.testing.assert_close(ours(x), expected, rtol=1e-5, atol=1e-6)
    without = expected - torch.sigmoid(reference.shared_expert_gate(x)) * reference.shared_expert(x)
    assert (without - expected).abs().max() > 0.01


def routed(moe, x):
    """Each token's weights and experts."""
    return route(linear(x, moe.gate.weight), moe.top_k, moe.norm_topk)


def run_both(moe, x):
    given = (x, moe.experts_gate_up, moe.experts_down, *routed(moe, x))
    return run_grouped(*given), run_every_expert(*given)


def test_both_ways_of_running_experts_agree():
    moe = randomize(SparseMoE(16, 24, 8, 3, True), seed=3)
    grouped, every = run_both(moe, inputs(29, 16))
    torch.testing.assert_close(grouped, every, rtol=1e-5, atol=1e-6)


def test_mixtures_in_bf16_round_only():
    exact = randomize(SparseMoE(16, 24, 8, 3, True, dtype=torch.bfloat16), seed=4)
    x = inputs(29, 16).bfloat16()
    wide = SparseMoE(16, 24, 8, 3, True).requires_grad_(False)
    wide.load_state_dict({name: value.float() for name, value in exact.state_dict().items()})
    for result in run_both(exact, x):
        assert result.dtype == torch.bfloat16
        torch.testing.assert_close(result.float(), wide(x.float()), rtol=0.02, atol=0.02)


def test_idle_experts_do_not_matter():
    moe = randomize(SparseMoE(16, 24, 8, 2, True), seed=5)
    x = inputs(6, 16)
    busy = routed(moe, x)[1].unique().tolist()
    assert len(busy) < 8
    expected = run_both(moe, x)
    idle = [expert for expert in range(8) if expert not in busy]
    # What idle experts would overflow to must not reach a token.
    moe.experts_gate_up[idle] = 1e30
    moe.experts_down[idle] = 1e30
    assert all(torch.equal(got, before) for got, before in zip(run_both(moe, x), expected, strict=True))
