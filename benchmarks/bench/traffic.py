"""Synthetic requests: random prompts, fixed lengths."""

import numpy as np

from omni.payload import Payload
from omni.sampling import SamplingParams
from omni_ar.inputs import Prompt, StepInputs
from omni_ar.model import ArShape


def random_prompt(
    generator: np.random.Generator, length: int, shape: ArShape, *, payload: int = 0, vocab: int | None = None
) -> Payload:
    """`length` random ids on every prompt column, text positions.

    payload: how many positions' hidden states a consumer needs. vocab: ids are below it; None takes all that the model samples.
    """
    columns = generator.integers(0, vocab or shape.vocab_size, (len(shape.prompt_columns), length), dtype=np.int64)
    positions = np.broadcast_to(np.arange(length), (shape.position_axes, length)).copy()
    return Payload(
        Prompt(columns=columns, positions=positions, next_position=length, payload_positions=np.arange(payload))
    )


def same_text() -> Payload:
    """Conditioning of every step of a talker that no thinker feeds: the text id 0."""
    return Payload(StepInputs(columns=np.zeros((1, 0), np.int64), pad=np.zeros(1, np.int64)))


def drawn(seed: int, max_tokens: int) -> SamplingParams:
    """Temperature 1 and no other parameter; only the length ends a request."""
    return SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=seed, ignore_eos=True)
