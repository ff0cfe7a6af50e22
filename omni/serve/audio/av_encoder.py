"""Compressed formats, by FFmpeg's encoders (PyAV)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import IO, Any, cast

import av
import numpy as np
import soxr
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class AvCodec:
    """codec, container: FFmpeg's names. rates: Hz that the codec takes, rising. bit_rate: bits per second, 0 for lossless.
    streamed: options of a container without an end."""

    codec: str
    container: str
    rates: tuple[int, ...]
    bit_rate: int = 0
    streamed: Mapping[str, str] = field(default_factory=dict)

    def rate_for(self, sample_rate: int) -> int:
        """The lowest rate that is not below the rate of the samples, or else the highest."""
        return next((rate for rate in self.rates if rate >= sample_rate), self.rates[-1])


_MPEG_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)

# Without an end, mp3 has no table of its frames. Ogg pages hold 20 ms instead of a second.
MP3 = AvCodec("libmp3lame", "mp3", _MPEG_RATES, 96_000, {"write_xing": "0", "id3v2_version": "0"})
OPUS = AvCodec("libopus", "ogg", (8000, 12000, 16000, 24000, 48000), 64_000, {"page_duration": "20000"})
AAC = AvCodec("aac", "adts", _MPEG_RATES, 96_000)
FLAC = AvCodec("flac", "flac", (*_MPEG_RATES, 88200, 96000, 176400, 192000))
CODECS: Mapping[str, AvCodec] = {"mp3": MP3, "opus": OPUS, "aac": AAC, "flac": FLAC}


class AvEncoder:
    """Mono samples to a file of a codec, with a header that names no length unless `whole`. Uses about 1% of a core."""

    def __init__(self, codec: AvCodec, sample_rate: int, *, whole: bool = False) -> None:
        """sample_rate: of the samples, in Hz. whole: give nothing before `finish`, and write the header last."""
        self._rate = codec.rate_for(sample_rate)
        same = sample_rate == self._rate
        self._resample = None if same else soxr.ResampleStream(sample_rate, self._rate, 1, dtype="float32")
        self._pushed = 0
        self._whole = whole
        self._sink = _SeekableSink() if whole else _Sink()
        options = {} if whole else {**codec.streamed, "flush_packets": "1"}
        self._file = av.open(cast(IO[bytes], self._sink), "w", format=codec.container, options=options)
        self._stream = cast(Any, self._file.add_stream(codec.codec, rate=self._rate))
        self._stream.codec_context.layout = "mono"
        if codec.bit_rate:
            self._stream.bit_rate = codec.bit_rate

    def push(self, samples: NDArray[np.float32]) -> bytes:
        self._encode(samples if self._resample is None else self._resample.resample_chunk(samples))
        return b"" if self._whole else self._sink.taken()

    def finish(self) -> bytes:
        if self._resample is not None:
            self._encode(self._resample.resample_chunk(np.zeros(0, np.float32), last=True))
        self._file.mux(self._stream.encode(None))
        self._file.close()
        return self._sink.taken()

    def _encode(self, samples: NDArray[np.float32]) -> None:
        if not len(samples):
            return
        clipped = np.clip(samples, -1.0, 1.0)
        frame = av.AudioFrame.from_ndarray(clipped[None], format="fltp", layout="mono")
        frame.sample_rate, frame.time_base, frame.pts = self._rate, Fraction(1, self._rate), self._pushed
        self._pushed += len(samples)
        self._file.mux(self._stream.encode(frame))


class _Sink:
    """The bytes that were written since the last call. Without `seek`, nothing is written again."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def taken(self) -> bytes:
        data = bytes(self._data)
        self._data.clear()
        return data


class _SeekableSink(_Sink):
    def __init__(self) -> None:
        super().__init__()
        self._place = 0

    def write(self, data: bytes) -> int:
        self._data[self._place : self._place + len(data)] = data
        self._place += len(data)
        return len(data)

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = (0, self._place, len(self._data))[whence] + offset
        return self._place
