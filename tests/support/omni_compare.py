"""Answers of a tiny Qwen3-Omni against those that the CPU gives to each request alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from support.close_calls import Choice, Comparison, WatchedCpu
from support.omni_engine import OmniEngine, Result
from support.omni_shapes import CHATS, SHAPES
from support.reference import tiny_checkpoint
from support.reference_compare import TOLERANCE


@dataclass(frozen=True, slots=True)
class Expected:
    """close: the choices that another device may make otherwise."""

    result: Result
    close: set[Choice]


@cache
def answers_alone(shape: str) -> list[Expected]:
    """To `CHATS`, on the CPU, in plain torch, one request after the other. shape: of `SHAPES`."""
    device = WatchedCpu()
    settings = {"thinker.prefix_cache": False, "talker.prefix_cache": False}
    engine = OmniEngine(tiny_checkpoint(**SHAPES[shape]), settings, device)
    expected = []
    for asked in CHATS:
        device.forget()
        result = engine.answer(asked)
        assert device.choices >= len(result.ids) + result.codes.numel(), "choices went past the watch"
        assert "audio" not in asked.modalities or len(result.frames) > 10, "it says too little to compare"
        expected.append(Expected(result, set(device.close)))
    return expected


def assert_all_same(results: Sequence[Result], expected: Sequence[Expected], comparison: Comparison) -> None:
    """Tokens, codes of all groups, reasons and waveforms; what follows from an excused difference is not compared."""
    for given, wanted in zip(results, expected, strict=True):
        if given.error is not None:
            raise given.error
        right, close = wanted.result, wanted.close
        if not comparison.tokens("thinker", given.ids, right.ids, close):
            continue
        if not comparison.frames("talker", given.frames, right.frames, close):
            continue
        assert given.reasons == right.reasons
        assert given.wave.shape == right.wave.shape
        if right.wave.size:
            assert np.abs(given.wave - right.wave).max() <= TOLERANCE * np.abs(right.wave).max()
