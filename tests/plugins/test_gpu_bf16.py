"""In bfloat16: log-probabilities of prompts and of sampled tokens are near those of the same weights in float32 and plain torch.

The language models have the published ones' widths, fewer layers and experts, and random weights.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from omni.checkpoint import fill_dummy
from omni.checkpoint.load import default_init
from omni.device import open_device
from omni.device.kernel_choice import plain_torch
from omni.payload import LogprobsChunk
from omni_ar.attention.select import select_backend
from omni_ar.layers import DecoderConfig
from omni_ar.layers.deepstack import DeepstackModel
from omni_ar.layers.text_model import TextModel
from omni_ar.model import ArModel
from omni_ar.options import ArOptions, AttentionName
from tests.support.ar_driver import ArDriver, plain_prompt

# Log-probabilities that a model gives known tokens, in prefill and in decode steps.

Scores = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Scored:
    """tokens: a prompt and the generated tokens. scores: the log-probability of each but the first. said: number of generated
    ones."""

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
        backend = select_backend(
            "scored", attention, target, shape=model.shape, dtype=dtype, block_size=options.block_size
        )
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
        chunks = [meta for meta in metas if isinstance(meta, LogprobsChunk) and meta.prompt == of_prompt]
        chunks.sort(key=lambda chunk: chunk.first)
        return np.concatenate([np.empty(0, np.float32), *(chunk.logprobs[:, 0] for chunk in chunks)])


MEAN, MOST = 0.05, 0.5
"""Natural logarithms."""

LENGTHS = (1, 7, 64, 65, 130, 200, 255, 300, 17, 33)
"""Of prompts."""


@dataclass(frozen=True, slots=True)
class Case:
    """model: of a dtype, on a device. lengths: of prompts. tokens: that are generated after each."""

    model: Callable[[torch.dtype, torch.device], ArModel]
    vocab: int
    device: str
    lengths: Sequence[int]
    tokens: int


def text(config: DecoderConfig, vocab: int, tied: bool = False) -> Callable[[torch.dtype, torch.device], ArModel]:
    return lambda dtype, device: TextModel(config, vocab, tied=tied, device=device, dtype=dtype)


def unit_gain(name: str, tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Every matrix keeps the scale of its input, whatever its width: logits have a standard deviation of about 1.

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
