"""Random weights that make a tiny model lively. With default initializations it repeats one token for any input, and its vocoder is
silent. Here matrices preserve the scale of their inputs, biases and norm weights differ from each other, and the waveform is scaled
to a peak of one half."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from omni.tiny.chat import WORDS
from omni.utils.quiet import quiet

_PEAK = 0.5
_NEVER = 0.1
"""Scale of suppressed logits: far below the others, yet without ties."""
_SAYABLE = {*WORDS, *".,?!"}


@contextmanager
def seeded(seed: int) -> Iterator[torch.Generator]:
    """A generator of this seed. While entered, transformers is quiet and its draws from the global generator follow
    from the seed; the global generator's state is restored on exit."""
    with quiet(), torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        yield torch.Generator().manual_seed(seed)


@torch.no_grad()
def fill(model: nn.Module, generator: torch.Generator, *, deep: str | None = None) -> None:
    """Overwrites all parameters. deep: name prefix of deep parts without norms, which are chaotic at a gain of 1 and
    amplify float32 rounding to 1e-4 of their peak. Language models are shallow."""
    for path, module in model.named_modules():
        gain = 0.8 if deep is not None and path.startswith(deep) else 2.0
        for name, parameter in module.named_parameters(recurse=False):
            _fill(f"{path}.{name}", module, parameter, gain, generator)


def _fill(name: str, module: nn.Module, parameter: Tensor, gain: float, generator: torch.Generator) -> None:
    parameter.normal_(generator=generator)
    if isinstance(module, nn.Embedding):
        return
    if parameter.dim() > 1:
        parameter.mul_(gain / math.sqrt(_fan_in(module, parameter)))
    elif name.endswith("bias"):
        parameter.mul_(0.1)
    elif name.endswith(("alpha", "beta")):
        # Logarithms of frequency and inverse height of a periodic activation.
        parameter.mul_(0.2)
    else:
        parameter.mul_(0.1).add_(1.5 if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0)


def _fan_in(module: nn.Module, parameter: Tensor) -> float:
    """The number of products in an output's sum: for a transposed convolution, only the taps that meet at one position."""
    if isinstance(module, nn.ConvTranspose1d):
        return module.in_channels * module.kernel_size[0] / module.stride[0]
    # Stacked expert matrices [E, out, in] sum over the last dimension only.
    is_convolution = isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    return math.prod(parameter.shape[1:]) if is_convolution else parameter.shape[-1]


@torch.no_grad()
def scale_peak(last: nn.Module, speak: Callable[[], Tensor]) -> None:
    """Scales a vocoder's last layer, to which the waveform is proportional, until `speak` returns one with a peak of one half."""
    # Scale down first: vocoders clip at one.
    for parameter in last.parameters():
        parameter.mul_(1e-3)
    gain = _PEAK / speak().abs().max()
    for parameter in last.parameters():
        parameter.mul_(gain)


def tame_text(model: Any, tokenizer: Any, gain: float) -> None:
    """`tame` for a text model: it may write words and ends of sentences, and stops with the end of a turn. model: a module with an
    `lm_head`. tokenizer: of `omni.tiny.chat`."""
    head: nn.Linear = model.lm_head
    tame(head, sayable(tokenizer, head.out_features), {tokenizer.eos_token_id}, gain)


def sayable(tokenizer: Any, vocab_size: int) -> set[int]:
    """Ids that a tiny model may write: words and the ends of sentences."""
    texts = tokenizer.batch_decode([[i] for i in range(vocab_size)], skip_special_tokens=True)
    return {i for i, text in enumerate(texts) if text.strip() in _SAYABLE}


@torch.no_grad()
def tame(head: nn.Linear, ids: Iterable[int], stops: Collection[int], gain: float) -> None:
    """Restricts a model to `ids`, and to stop ids with likelihood `gain`: 0 for never, 1 as any other id."""
    kept = {*ids, *stops}
    head.weight[[i for i in range(head.out_features) if i not in kept]] *= _NEVER
    head.weight[sorted(stops)] *= gain
