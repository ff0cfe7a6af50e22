"""Encodes samples as the bytes of a file, as they come."""

import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import soxr
from numpy.typing import NDArray

from omni.errors import InputError, quoted
from omni.serve.audio.av_encoder import CODECS, AvCodec, AvEncoder

PCM_RATE = 24000
"""Sample rate of raw PCM in Hz: the format has no header that could state another rate."""

Samples = NDArray[np.float32]
"""Mono, float32 `[n]`, clipped to -1..1."""


class SpeechEncoder(Protocol):
    """Encodes the sound of one answer. The concatenated bytes are a file."""

    def push(self, samples: Samples) -> bytes:
        """The bytes that are ready, perhaps none."""

    def finish(self) -> bytes:
        """Returns the remaining bytes. Called once, after the last samples."""


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
    """A wav of 16-bit mono samples at their own rate. The header comes first and states the maximum length, as usual for a streamed
    wav."""

    def __init__(self, sample_rate: int) -> None:
        self._header = _wav_header(sample_rate)

    def push(self, samples: Samples) -> bytes:
        header, self._header = self._header, b""
        return header + pcm16(samples)

    def finish(self) -> bytes:
        header, self._header = self._header, b""
        return header


class WholeWavEncoder:
    """A wav whose header states its length: all bytes are returned at the end."""

    def __init__(self, sample_rate: int) -> None:
        self._streamed = WavEncoder(sample_rate)
        self._data = bytearray()

    def push(self, samples: Samples) -> bytes:
        self._data += self._streamed.push(samples)
        return b""

    def finish(self) -> bytes:
        self._data += self._streamed.finish()
        for offset in (4, 40):
            struct.pack_into("<I", self._data, offset, len(self._data) - offset - 4)
        return bytes(self._data)


_NONE = np.zeros(0, np.float32)
_UNKNOWN = 2**32 - 1
"""Length of a stream in a wav's header."""


def pcm16(samples: Samples) -> bytes:
    return (np.clip(samples, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes()


def _wav_header(sample_rate: int) -> bytes:
    layout = (16, 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    return struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", _UNKNOWN, b"WAVE", b"fmt ", *layout, b"data", _UNKNOWN)


@dataclass(frozen=True, slots=True)
class Format:
    """media_type: of a response that is such a file. streamed, whole: encoders for a sample rate in Hz. The second one knows the
    length before it writes a header. compressed: whether it is of `CODECS`."""

    media_type: str
    streamed: Callable[[int], SpeechEncoder]
    whole: Callable[[int], SpeechEncoder]
    compressed: bool = False


def _compressed(media_type: str, codec: AvCodec) -> Format:
    return Format(media_type, partial(AvEncoder, codec), partial(AvEncoder, codec, whole=True), compressed=True)


FORMATS: Mapping[str, Format] = {
    "wav": Format("audio/wav", WavEncoder, WholeWavEncoder),
    "pcm16": Format("audio/pcm", PcmEncoder, PcmEncoder),
    "mp3": _compressed("audio/mpeg", CODECS["mp3"]),
    "opus": _compressed("audio/ogg", CODECS["opus"]),
    "aac": _compressed("audio/aac", CODECS["aac"]),
    "flac": _compressed("audio/flac", CODECS["flac"]),
}
"""Formats by their names in chats."""


def check_format(name: str, field: str, names: Collection[str] = FORMATS.keys()) -> None:
    """names: the accepted names. Raises InputError for any other name."""
    if name not in names:
        remedy = f"use one of {', '.join(names)}"
        raise InputError(field, f"{quoted(name)} is not written here", remedy)
