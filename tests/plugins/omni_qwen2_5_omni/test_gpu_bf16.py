"""In bfloat16: log-probabilities of prompts and of sampled tokens are near those of the same weights in float32 and plain torch.

The language models have the published ones' widths, fewer layers, and random weights.
"""

import gc
from collections.abc import Iterator

import pytest
import torch

from omni_ar.layers import DecoderConfig
from tests.support.devices import full_float32
from tests.support.half_precision import LENGTHS, Case, assert_near, text


def decoder(
    width: int, heads: int, kv_heads: int, mlp_width: int, *, head_dim: int = 128, mrope: tuple[int, ...] = (16, 24, 24)
) -> DecoderConfig:
    return DecoderConfig(
        width=width, num_layers=4, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, mlp_width=mlp_width,
        max_positions=32_768, rope_theta=1e6, rms_norm_eps=1e-6, mrope_section=mrope, mrope_interleaved=False,
        attention_bias=True, output_bias=False, qk_norm=False,
    )  # fmt: skip


SMALL = decoder(96, 6, 2, 192, head_dim=32, mrope=(4, 6, 6))
CASES = {
    "small": Case(text(SMALL, 500), 500, "cpu", (1, 9, 20), 12),
    "7B, thinker": Case(text(decoder(3584, 28, 4, 18_944), 152_064), 152_064, "cuda", LENGTHS, 40),
    "7B, talker": Case(text(decoder(896, 12, 4, 18_944), 8448), 8448, "cuda", LENGTHS, 40),
    "3B, thinker": Case(text(decoder(2048, 16, 2, 11_008), 151_936), 151_936, "cuda", LENGTHS, 40),
    "3B, talker": Case(
        text(decoder(896, 14, 2, 4864, head_dim=64, mrope=(16, 16, 0)), 8448), 8448, "cuda", LENGTHS, 40
    ),
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
