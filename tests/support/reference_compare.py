"""Whether the engine gave what transformers gave."""

import numpy as np
import torch

from support.omni_engine import Result
from support.reference import Answer

TOLERANCE = 1e-4
"""Of the waveform's peak."""


def differences(result: Result, answer: Answer) -> set[str]:
    """Which of `text`, `codes` (of any group) and `wave` differ. The reference's waveform must be neither mute nor clipped."""
    if result.error is not None:
        raise result.error
    found: set[str] = set()
    if result.ids != answer.ids:
        found.add("text")
    if not torch.equal(result.codes, answer.codes):
        found.add("codes")
    if result.wave.shape != answer.wave.shape:
        return found | {"wave"}
    if answer.wave.size:
        peak = np.abs(answer.wave).max()
        assert 0.05 < peak < 0.95, f"the reference peaks at {peak}"
        if np.abs(result.wave - answer.wave).max() > TOLERANCE * peak:
            found.add("wave")
    return found


def assert_same(result: Result, answer: Answer) -> None:
    assert differences(result, answer) == set(), f"\n{result.ids}\n{answer.ids}\n{result.codes}\n{answer.codes}"
