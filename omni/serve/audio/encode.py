"""From samples to the bytes of a file, as they come."""

import struct
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import soxr
from numpy.typing import NDArray

from omni.errors import InputError, quoted

PCM_RATE = 24000
"""Hz, of raw PCM: it has no header to say so."""

Samples = NDArray[np.float32]
"""Mono, float32 `[n]`, clipped to -1..1."""


class SpeechEncoder(Protocol):
    """One answer's sound. Joined, the bytes are a file."""

    def push(self, samples: Samples) -> bytes:
        """The bytes that are ready, perhaps none."""

    def finish(self) -> bytes:
        """The rest. Called once, after the last samples."""


class PcmEncoder:
    """16-bit little-endian mono samples without a header, at `PCM_RATE`."""

    def __init__(self, sample_rate: int) -> None:
        """sample_rate: of the samples, in Hz."""
        same = sample_rate == PCM_RATE
        self._resample = None if same else soxr.ResampleStream(sample_rate, PCM_RATE, 1, dtype="float32")

    def push(self, samples: Samples) -> bytes:
        return pcm16(samples if self._resample is None else self._resample.resample_chunk(samples))

    def finish(self) -> bytes:
        return b"" if self._resample is None else pcm16(self._resample.resample_chunk(_NONE, last=True))


class WavEncoder:
    """A wav of 16-bit mono samples at their own rate. Its header comes first and gives the largest length, as a stream's does."""

    def __init__(self, sample_rate: int) -> None:
        self._header = _wav_header(sample_rate)

    def push(self, samples: Samples) -> bytes:
        header, self._header = self._header, b""
        return header + pcm16(samples)

    def finish(self) -> bytes:
        header, self._header = self._header, b""
        return header


_NONE = np.zeros(0, np.float32)
_UNKNOWN = 2**32 - 1
"""Length of a stream in a wav's header."""


def pcm16(samples: Samples) -> bytes:
    return (np.clip(samples, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes()


def _wav_header(sample_rate: int) -> bytes:
    layout = (16, 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    return struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", _UNKNOWN, b"WAVE", b"fmt ", *layout, b"data", _UNKNOWN)


def whole_wav(data: bytes) -> bytes:
    """A wav of `WavEncoder` with the lengths that it has."""
    sizes = {4: len(data) - 8, 40: len(data) - 44}
    fixed = bytearray(data)
    for offset, size in sizes.items():
        struct.pack_into("<I", fixed, offset, size)
    return bytes(fixed)


ENCODERS: Mapping[str, Callable[[int], SpeechEncoder]] = {"wav": WavEncoder, "pcm16": PcmEncoder}
"""By format. Each takes the rate of the samples, in Hz."""


def check_format(name: str, field: str) -> None:
    """Raises InputError for a format that is not written here."""
    if name not in ENCODERS:
        remedy = f"use one of {', '.join(ENCODERS)}"
        raise InputError(field, f"{quoted(name)} is not written here", remedy)


def encoder_for(name: str, sample_rate: int) -> SpeechEncoder:
    """name: a format that `check_format` accepts. sample_rate: of the samples, in Hz."""
    return ENCODERS[name](sample_rate)
