"""In bfloat16: log-probabilities of prompts and of sampled tokens are near those of the same weights in float32 and plain torch.

The models have the published ones' widths, fewer layers and experts, and random weights.
"""

import gc
from collections.abc import Iterator

import pytest
import torch

from omni_ar.layers import DecoderConfig
from omni_ar.layers.deepstack import DeepstackModel
from omni_ar.model import ArModel
from tests.support.devices import full_float32
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


def thinker(dtype: torch.dtype, device: torch.device) -> ArModel:
    return DeepstackModel(THINKER, 152_064, deepstack=("image",), hidden_layer=None, device=device, dtype=dtype)


CASES = {
    "small": Case(text(SMALL, 500), 500, "cpu", (1, 9, 20), 12),
    "Qwen3-0.6B": Case(text(QWEN3_06B, 151_936, tied=True), 151_936, "cuda", LENGTHS, 40),
    "thinker": Case(thinker, 152_064, "cuda", LENGTHS, 40),
    "talker": Case(text(TALKER, 3072), 3072, "cuda", LENGTHS, 40),
}


@pytest.fixture(autouse=True)
def no_tf32() -> Iterator[None]:
    with full_float32():
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
