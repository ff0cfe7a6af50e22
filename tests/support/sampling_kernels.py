"""The sampling kernels next to the sampler that they stand for, on states that are set up as a stage does it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from omni_ar.sampling import EVERYTHING, SamplingState, apply_penalties, gumbel, warp_tokens
from support.sampler_bench import SamplerBench, resolved, starting

CLOSE = 1e-4
"""Two ids whose noisy logits are no further apart may be taken for one another."""

STOPS = (1, 2)


def state_of(
    vocab: int, rows: Sequence[Mapping[str, Any]], prompt: Sequence[int] = (), outputs: Sequence[int] = ()
) -> SamplingState:
    """State of rows with these parameters, on the CPU."""
    bench = SamplerBench(vocab, len(rows))
    bench.start(
        [starting(index, resolved(vocab, **asked), prompt, outputs=outputs) for index, asked in enumerate(rows)]
    )
    return bench.state


def moved(state: SamplingState, device: str) -> SamplingState:
    tensors = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    there: dict[str, Any] = {name: t.to(device) for name, t in tensors.items() if isinstance(t, Tensor)}
    return dataclasses.replace(state, **there)


def noisy_logits(logits_RV: Tensor, state: SamplingState, rows_R: Tensor, position_R: Tensor) -> Tensor:
    """What a token is the argmax of, by the sampler's own parts, on the CPU."""

    def of(values: Tensor) -> Tensor:
        return values.index_select(0, rows_R)

    logits_RV = apply_penalties(logits_RV, state, rows_R, position_R, EVERYTHING.needs)
    warped_RV = warp_tokens(logits_RV, state, rows_R, EVERYTHING.needs)
    noise_RV = gumbel(of(state.seed), of(state.sample_index), position_R, 0, 0, logits_RV.shape[1])
    return torch.where(of(state.temperature)[:, None] == 0, logits_RV, warped_RV + noise_RV)


def assert_same_ids(given_R: Tensor, expected_R: Tensor, noisy_RV: Tensor) -> None:
    """Equal, but where the two are within rounding of each other."""
    for row in (given_R != expected_R).nonzero().flatten().tolist():
        given, expected = int(given_R[row]), int(expected_R[row])
        assert given >= 0, (row, given, expected)
        assert expected >= 0, (row, given, expected)
        apart = float(noisy_RV[row, expected] - noisy_RV[row, given])
        assert apart <= CLOSE, (row, given, expected, apart)
