"""Models in bfloat16 against the same weights in float32 and plain torch: log-probabilities of prompts and of sampled tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from omni.checkpoint import fill_dummy
from omni.checkpoint.dummy import default_init
from omni.device.kernel_choice import plain_torch
from omni_ar.layers import DecoderConfig
from omni_ar.layers.text_model import TextModel
from omni_ar.model import ArModel
from support.teacher_forced import Scored, Scorer, Scores

MEAN, MOST = 0.05, 0.5
"""Natural logarithms."""

LENGTHS = (1, 7, 64, 65, 130, 200, 255, 300, 17, 33)
"""Of prompts."""


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


def unit_gain(name: str, tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Every matrix keeps the scale of what it is given, whatever its width: logits have a standard deviation of about 1.

    Routers prefer some experts clearly, as trained ones do: rounding swaps two at the edge now and then, which count little.
    """
    if tensor.dim() > 1:
        gain = 3 if name.endswith("mlp.gate.weight") else 1
        tensor.normal_(0.0, gain * tensor.shape[-1] ** -0.5, generator=generator)
    elif name.endswith("bias"):
        tensor.normal_(0.0, 0.5, generator=generator)
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


def assert_near(name: str, case: Case, captured: bool) -> None:
    """What kernels give in bfloat16 is as near to float32 as plain torch's bfloat16 is, in prefill and in decode steps."""
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
