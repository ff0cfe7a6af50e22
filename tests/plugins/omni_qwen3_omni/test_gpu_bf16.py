"""In bfloat16: log-probabilities of prompts and of sampled tokens are near those of the same weights in float32 and plain torch.

The models have the published ones' widths, fewer layers and experts, and random weights.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from omni.checkpoint import fill_dummy
from omni.checkpoint.dummy import default_init
from omni.kernel_choice import plain_torch
from omni_ar.layers import DecoderConfig
from omni_ar.layers.deepstack import DeepstackModel
from omni_ar.layers.text_model import TextModel
from omni_ar.model import ArModel
from support.full_float32 import full_float32
from support.teacher_forced import Scored, Scorer, Scores

MEAN, MOST = 0.05, 0.5
"""Natural logarithms."""

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


@dataclass(frozen=True, slots=True)
class Case:
    """model: of a dtype, on a device. lengths: of prompts. tokens: that are said after each."""

    model: Callable[[torch.dtype, torch.device], ArModel]
    vocab: int
    device: str
    lengths: Sequence[int]
    tokens: int


def text(config: DecoderConfig, vocab: int, tied: bool = False) -> Callable[[torch.dtype, torch.device], ArModel]:
    return lambda dtype, device: TextModel(config, vocab, tied=tied, device=device, dtype=dtype)


def thinker(dtype: torch.dtype, device: torch.device) -> ArModel:
    return DeepstackModel(THINKER, 152_064, deepstack=("image",), hidden_layer=None, device=device, dtype=dtype)


LENGTHS = (1, 7, 64, 65, 130, 200, 255, 300, 17, 33)
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


def unit_gain(name: str, tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Every matrix keeps the scale of what it is given, whatever its width: logits have a standard deviation of about 1.

    Routers prefer some experts clearly, as trained ones do: rounding swaps two at the edge now and then, which count little.
    """
    if tensor.dim() > 1:
        gain = 3 if name.endswith("mlp.gate.weight") else 1
        tensor.normal_(0.0, gain * tensor.shape[-1] ** -0.5, generator=generator)
    else:
        default_init(name, tensor, generator)


def models(case: Case) -> tuple[ArModel, ArModel]:
    """In bfloat16, and the same weights in float32."""
    half, full = (case.model(dtype, torch.device(case.device)) for dtype in (torch.bfloat16, torch.float32))
    fill_dummy(half, 1, unit_gain)
    full.load_state_dict(half.state_dict())
    return half.requires_grad_(False), full.requires_grad_(False)


def prompts(case: Case) -> list[list[int]]:
    """Random, and at the end one of the longest with another beginning."""
    random = np.random.default_rng(0)
    texts = [random.integers(0, case.vocab, length).tolist() for length in case.lengths]
    longest = max(texts, key=len)
    return [*texts, [*random.integers(0, case.vocab, len(longest) // 2).tolist(), *longest[len(longest) // 2 :]]]


def errors(given: Sequence[Scored], right: Sequence[Scored]) -> Scores:
    assert all(one.scores.shape == other.scores.shape for one, other in zip(given, right, strict=True))
    return np.concatenate([np.abs(one.scores - other.scores) for one, other in zip(given, right, strict=True)])


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize(
    "name",
    [name if case.device == "cpu" else pytest.param(name, marks=pytest.mark.gpu) for name, case in CASES.items()],
)
def test_logprobs_are_near_those_of_float32(name: str, captured: bool) -> None:
    case = CASES[name]
    half, full = models(case)
    given = Scorer(half, case.device, torch.bfloat16, "auto", captured).say(prompts(case), case.tokens)
    texts = [one.tokens for one in given]
    with plain_torch():
        right = Scorer(full, case.device, torch.float32, "torch", False).score(texts)
        plain = Scorer(half, case.device, torch.bfloat16, "torch", False).score(texts)

    off, of_plain = errors(given, right), errors(plain, right)
    print(
        f"\n{name}: mean {off.mean():.4f}, most {off.max():.3f}; plain torch {of_plain.mean():.4f}, {of_plain.max():.3f}"
    )
    assert off.mean() < MEAN
    assert off.max() < MOST
    decoded = [np.abs(one.scores - wanted.scores)[-one.said :] for one, wanted in zip(given, right, strict=True)]
    assert np.mean(decoded) < MEAN
    # Kernels round no more than plain torch does.
    assert off.mean() < 1.25 * of_plain.mean() + 1e-4
    # The scores are not all alike, and what stands before a token matters to it far more than rounding does.
    everything = np.concatenate([one.scores for one in right])
    assert everything.std() > 10 * MEAN
    half_way = len(prompts(case)[-1]) // 2
    longest = max(range(len(right) - 1), key=lambda index: len(right[index].tokens))
    end = len(prompts(case)[-1]) - 1
    apart = np.abs(right[longest].scores[half_way:end] - right[-1].scores[half_way:end])
    assert apart.mean() > 2 * MEAN
