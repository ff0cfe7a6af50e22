"""Files of speech, read back."""

import io

import av
import numpy as np
from numpy.typing import NDArray

RAW = {"pcm": 24000, "pcm16": 24000}
"""Rates, in Hz, of formats without a header."""


def decoded(data: bytes, format: str) -> tuple[NDArray[np.float32], int]:
    """Mono samples of -1..1, and their rate in Hz."""
    if format in RAW:
        return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32767), RAW[format]
    with av.open(io.BytesIO(data), "r") as file:
        frames = list(file.decode(audio=0))
    scale = np.float32(32768 if frames[0].format.name.startswith("s16") else 1)
    assert {frame.layout.nb_channels for frame in frames} == {1}
    samples = np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames])
    return samples.astype(np.float32) / scale, frames[0].sample_rate
