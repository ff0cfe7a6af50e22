"""What kernels pass on together: named tuples, whose fields are pointers or values inside a kernel.

Shape legend: N rows of the state, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from omni_ar.sampling.state import SamplingState


class Parameters(NamedTuple):
    """Pointers to the state's rows: fields of `SamplingState`, with its flags as bytes."""

    needs: Tensor
    temperature: Tensor
    seed: Tensor
    sample_index: Tensor
    repetition: Tensor
    seen: Tensor
    frequency: Tensor
    presence: Tensor
    counts: Tensor
    bias_ids: Tensor
    biases: Tensor
    forbidden: Tensor
    bad_words: Tensor
    recent: Tensor
    min_tokens: Tensor
    stop_ids: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


class CodeParameters(NamedTuple):
    """Pointers to what the codes of a frame after the first are drawn by: of `SamplingState`, what begins with `code_`."""

    needs: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    sample_index: Tensor


class Wanted(NamedTuple):
    """Of one row. tail: what top-p may leave out."""

    needs: Tensor
    k: Tensor
    tail: Tensor
    min_p: Tensor | float


class Draw(NamedTuple):
    """What names a row's draw, next to the id: the last three words of the counter, uint32, and the key's two, uint64 below
    2 ** 32."""

    position: Tensor
    sample: Tensor
    use: Tensor
    k0: Tensor
    k1: Tensor


class Spare(NamedTuple):
    """Pointers to room for values and their ids, fp32 and int32."""

    x: Tensor
    ids: Tensor


def parameters_of(state: SamplingState) -> Parameters:
    return Parameters(
        needs=state.needs,
        temperature=state.temperature,
        seed=state.seed,
        sample_index=state.sample_index,
        repetition=state.repetition,
        seen=state.seen.view(torch.uint8),
        frequency=state.frequency,
        presence=state.presence,
        counts=state.counts,
        bias_ids=state.bias_ids,
        biases=state.biases,
        forbidden=state.forbidden.view(torch.uint8),
        bad_words=state.bad_words,
        recent=state.recent,
        min_tokens=state.min_tokens,
        stop_ids=state.stop_ids,
        top_k=state.top_k,
        top_p=state.top_p,
        min_p=state.min_p,
    )


def code_parameters_of(state: SamplingState) -> CodeParameters:
    return CodeParameters(
        needs=state.needs,
        temperature=state.code_temperature,
        top_k=state.code_top_k,
        top_p=state.code_top_p,
        seed=state.seed,
        sample_index=state.sample_index,
    )
