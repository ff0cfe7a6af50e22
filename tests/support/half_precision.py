"""Models in bfloat16 against the same weights in float32 and plain torch: log-probabilities of prompts and of sampled tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from omni.checkpoint import fill_dummy
from omni.checkpoint.dummy import default_init
from omni.device import open_device
from omni.device.kernel_choice import plain_torch
from omni.payload import TokenLogprobs
from omni_ar.attention.select import select_backend
from omni_ar.layers import DecoderConfig
from omni_ar.layers.text_model import TextModel
from omni_ar.model import ArModel
from omni_ar.options import ArOptions, AttentionName
from tests.support.ar_driver import ArDriver, plain_prompt

# Log-probabilities that a model gives known tokens, in prefill and in decode steps.

Scores = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Scored:
    """tokens: a prompt and what was said. scores: the log-probability of each but the first. said: how many of them were said."""

    tokens: list[int]
    scores: Scores
    said: int


class Scorer:
    """A model on a device, in batches. captured: its decode steps are."""

    def __init__(
        self, model: ArModel, device: str, dtype: torch.dtype, attention: AttentionName, captured: bool
    ) -> None:
        options = ArOptions(max_num_seqs=8, max_model_len=512, max_num_batched_tokens=600, max_in_flight=3)
        target = open_device(device)
        self._axes = model.shape.position_axes
        backend = select_backend("scored", attention, target, model.shape, dtype, options.block_size)
        self._driver = ArDriver(model, target, options, captured=captured, backend=backend, dtype=dtype)
        target.synchronize()  # weights and zeroed state were written on another stream
        self._count = 0

    def say(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[Scored]:
        """Scores prompts, and then so many sampled tokens of each, all requests together."""
        names = [self._ask(prompt, tokens, seed=seed) for seed, prompt in enumerate(prompts)]
        self._finish(names)
        scored = []
        for name, prompt in zip(names, prompts, strict=True):
            said = self._driver.tokens(name)
            assert len(said) == tokens
            scored.append(
                Scored([*prompt, *said], np.concatenate([self._scores(name, True), self._scores(name)]), tokens)
            )
        return scored

    def score(self, texts: Sequence[Sequence[int]]) -> list[Scored]:
        """Scores known texts, in prefill alone."""
        names = [self._ask(text, 1) for text in texts]
        self._finish(names)
        return [Scored(list(text), self._scores(name, True), 0) for name, text in zip(names, texts, strict=True)]

    def _ask(self, ids: Sequence[int], tokens: int, seed: int = 0) -> str:
        name, self._count = str(self._count), self._count + 1
        positions = np.broadcast_to(np.arange(len(ids)), (self._axes, len(ids)))
        prompt = plain_prompt(ids, positions=positions)
        self._driver.ask(
            name, prompt, max_tokens=tokens, prompt_logprobs=0, logprobs=0, temperature=1.0, top_p=0.95, seed=seed
        )
        return name

    def _finish(self, names: Sequence[str]) -> None:
        while not all(name in self._driver.ends for name in names):
            self._driver.tick()
        for name in names:
            self._driver.done(name)

    def _scores(self, name: str, of_prompt: bool = False) -> Scores:
        metas = [produced.payload.meta for produced in self._driver.produced[name]]
        chunks = [meta for meta in metas if isinstance(meta, TokenLogprobs) and meta.prompt == of_prompt]
        chunks.sort(key=lambda chunk: chunk.first)
        return np.concatenate([np.empty(0, np.float32), *(chunk.logprobs[:, 0] for chunk in chunks)])


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
