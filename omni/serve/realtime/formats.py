"""Encodings of sound in events, and speech in them."""

import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from omni.serve.audio.encode import PCM_RATE, Samples, pcm16

Pcm = NDArray[np.int16]
"""Samples of one channel, int16 `[n]`."""


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """type: its name in events. rate: Hz. width: bytes of a sample. subtype: libsndfile's name."""

    type: str
    rate: int
    width: int
    subtype: str

    def decode(self, data: bytes) -> Pcm:
        """Decodes `data`, which holds whole samples."""
        if self is PCM:
            return np.frombuffer(data, "<i2").astype(np.int16, copy=False)
        read, _ = soundfile.read(
            io.BytesIO(data), dtype="int16", samplerate=self.rate, channels=1, format="RAW", subtype=self.subtype
        )
        samples: Pcm = read
        return samples

    def encode(self, samples: Pcm) -> bytes:
        if self is PCM:
            return samples.astype("<i2", copy=False).tobytes()
        file = io.BytesIO()
        soundfile.write(file, samples, self.rate, format="RAW", subtype=self.subtype)
        return file.getvalue()


PCM = AudioFormat("audio/pcm", PCM_RATE, 2, "PCM_16")

FORMATS: Mapping[str, AudioFormat] = {
    "audio/pcm": PCM,
    "audio/pcmu": AudioFormat("audio/pcmu", 8000, 1, "ULAW"),
    "audio/pcma": AudioFormat("audio/pcma", 8000, 1, "ALAW"),
}
"""Formats by type: 16-bit little-endian PCM at 24 kHz, and the two of G.711."""


class FormatEncoder:
    """Encodes one response's speech. ms: length of the sound encoded so far."""

    def __init__(self, format: AudioFormat, sample_rate: int) -> None:
        """sample_rate: the rate of the samples to encode, in Hz."""
        self._format = format
        same = sample_rate == format.rate
        self._resample = None if same else soxr.ResampleStream(sample_rate, format.rate, 1, dtype="float32")
        self.ms = 0.0

    def push(self, samples: Samples) -> bytes:
        """The bytes that are ready, perhaps none."""
        return self._encode(samples if self._resample is None else self._resample.resample_chunk(samples))

    def finish(self) -> bytes:
        """Ends the sound and returns the rest of its bytes."""
        if self._resample is None:
            return b""
        return self._encode(self._resample.resample_chunk(np.zeros(0, np.float32), last=True))

    def _encode(self, samples: Samples) -> bytes:
        self.ms += 1000 * len(samples) / self._format.rate
        data = pcm16(samples)
        return data if self._format is PCM or not data else self._format.encode(np.frombuffer(data, "<i2"))
