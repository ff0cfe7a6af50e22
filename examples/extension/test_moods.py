"""Both kinds keep the contract of stages."""

import numpy as np
import torch

from omni.payload import AudioChunk, Payload, RequestHiddenStates
from omni.testing import check_stage
from omni_moods.mood import MoodKind, floats
from omni_moods.options import MoodOptions, QuietOptions
from omni_moods.quiet import QuietKind


def sound(*samples: float) -> Payload:
    return Payload(AudioChunk(samples=np.array(samples, np.float32), sample_rate=8000))


def test_quiet_keeps_the_contract() -> None:
    check_stage(
        QuietKind,
        options=QuietOptions(volume=0.5),
        inputs=[[sound(0.5, -1.0), sound(0.25)], [sound(1.0)]],
        expected=[[sound(0.25, -0.5), sound(0.125)], [sound(0.5)]],
    )


def states(positions: int, dtype: torch.dtype) -> Payload:
    hidden_nD = torch.randn(positions, 8, generator=torch.Generator().manual_seed(positions)).to(dtype)
    return Payload(RequestHiddenStates(layers=(2,), prompt_tokens=positions), {"hidden": hidden_nD})


def test_mood_keeps_the_contract() -> None:
    check_stage(
        MoodKind,
        options=MoodOptions(),
        inputs=[[states(5, torch.float32)], [states(3, torch.bfloat16)]],
        refused=[[sound(0.5)]],
    )


def test_values_are_read_in_any_dtype() -> None:
    rows_nD = torch.randn(7, 5)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        np.testing.assert_array_equal(floats(rows_nD.to(dtype)), rows_nD.to(dtype).float().numpy())
