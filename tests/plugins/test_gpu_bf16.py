"""In bfloat16: log-probabilities of prompts and of sampled tokens are near those of the same weights in float32 and plain torch.

The language models have the published ones' widths, fewer layers and experts, and random weights.
"""

import gc
from collections.abc import Iterator

import pytest
import torch

from omni_ar.layers import DecoderConfig
from omni_ar.layers.deepstack import DeepstackModel
from omni_ar.model import ArModel
from tests.support.half_precision import LENGTHS, Case, assert_near, text

QWEN3_06B = DecoderConfig(
    width=1024, num_layers=4, num_heads=16, num_kv_heads=8, head_dim=128, mlp_width=3072,
    max_positions=40_960, rope_theta=1e6, rms_norm_eps=1e-6,
)  # fmt: skip
THINKER = DecoderConfig(
    width=2048, num_layers=4, num_heads=32, num_kv_heads=4, head_dim=128, mlp_width=768, max_positions=65_536,
    rope_theta=1e6, rms_norm_eps=1e-6, mrope_section=(24, 20, 20), num_experts=16, top_k=8, expert_width=768,
)  # fmt: skip
TALKER = DecoderConfig(
    width=1024, num_layers=4, num_heads=16, num_kv_heads=2, head_dim=128, mlp_width=2048, max_positions=65_536,
    rope_theta=1e6, rms_norm_eps=1e-6, num_experts=16, top_k=6, expert_width=384, shared_expert_width=768,
)  # fmt: skip
SMALL = DecoderConfig(
    width=96, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=32, mlp_width=192, max_positions=2048,
    rope_theta=1e6, rms_norm_eps=1e-6, num_experts=6, top_k=3, expert_width=48,
)  # fmt: skip


def qwen2_5(
    width: int, heads: int, kv_heads: int, mlp_width: int, *, head_dim: int = 128, mrope: tuple[int, ...] = (16, 24, 24)
) -> DecoderConfig:
    return DecoderConfig(
        width=width, num_layers=4, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, mlp_width=mlp_width,
        max_positions=32_768, rope_theta=1e6, rms_norm_eps=1e-6, mrope_section=mrope, mrope_interleaved=False,
        attention_bias=True, output_bias=False, qk_norm=False,
    )  # fmt: skip


def thinker(dtype: torch.dtype, device: torch.device) -> ArModel:
    return DeepstackModel(THINKER, 152_064, deepstack=("image",), hidden_layer=None, device=device, dtype=dtype)


def small(config: DecoderConfig) -> Case:
    return Case(text(config, 500), 500, "cpu", (1, 9, 20), 12)


def large(config: DecoderConfig, vocab: int, tied: bool = False) -> Case:
    return Case(text(config, vocab, tied), vocab, "cuda", LENGTHS, 40)


CASES = {
    "small": small(SMALL),
    "Qwen3-0.6B": large(QWEN3_06B, 151_936, tied=True),
    "Qwen3-Omni, thinker": Case(thinker, 152_064, "cuda", LENGTHS, 40),
    "Qwen3-Omni, talker": large(TALKER, 3072),
    "small Qwen2.5": small(qwen2_5(96, 6, 2, 192, head_dim=32, mrope=(4, 6, 6))),
    "Qwen2.5-Omni-7B, thinker": large(qwen2_5(3584, 28, 4, 18_944), 152_064),
    "Qwen2.5-Omni-7B, talker": large(qwen2_5(896, 12, 4, 18_944), 8448),
    "Qwen2.5-Omni-3B, thinker": large(qwen2_5(2048, 16, 2, 11_008), 151_936),
    "Qwen2.5-Omni-3B, talker": large(qwen2_5(896, 14, 2, 4864, head_dim=64, mrope=(16, 16, 0)), 8448),
}


@pytest.fixture(autouse=True)
def free_memory() -> Iterator[None]:
    yield
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize(
    "name",
    [name if case.device == "cpu" else pytest.param(name, marks=pytest.mark.gpu) for name, case in CASES.items()],
)
def test_logprobs_are_near_those_of_float32(name: str, captured: bool) -> None:
    assert_near(name, CASES[name], captured)
