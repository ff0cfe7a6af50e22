"""The sound of an answer as a file."""

import asyncio
from typing import Protocol

import torch

from omni.serve.audio.encode import FORMATS, Samples, SpeechEncoder
from omni.serve.audio.encoder_pool import EncoderPool

_SHORT = 2**17
"""Up to this number of samples, PCM encoding takes a few tenths of a millisecond, less than handing it to a thread costs the event
loop."""


class _Encoder(Protocol):
    """A `SpeechEncoder` with asynchronous methods."""

    async def push(self, samples: Samples) -> bytes: ...

    async def finish(self) -> bytes: ...


class EncodedSound:
    """One answer's sound as a file, encoded beside the event loop. For one task at a time."""

    def __init__(self, format: str, pool: EncoderPool, *, whole: bool = False) -> None:
        """format: a name in `FORMATS`. whole: whether the file is wanted in one piece."""
        self._format = format
        self._pool = pool
        self._whole = whole
        self._encoder: _Encoder | None = None

    async def push(self, samples: torch.Tensor, sample_rate: int) -> bytes:
        """Encodes samples. samples: float32 `[n]`. sample_rate: in Hz, the same in each call. Returns the bytes that are ready,
        perhaps none. Raises StageError if a process of encoders fails."""
        if self._encoder is None:
            self._encoder = self._opened(sample_rate)
        return await self._encoder.push(samples.numpy())

    async def finish(self) -> bytes:
        """Returns the remaining bytes; no bytes if there was no sound. Raises StageError if a process of encoders fails."""
        return b"" if self._encoder is None else await self._encoder.finish()

    def _opened(self, sample_rate: int) -> _Encoder:
        made = FORMATS[self._format]
        if made.compressed and self._pool.processes:
            return self._pool.open(self._format, sample_rate, whole=self._whole)
        encoder = made.whole(sample_rate) if self._whole else made.streamed(sample_rate)
        return _OwnEncoder(encoder, beside=made.compressed)


class _OwnEncoder:
    """Encodes in this process. beside: whether to use a thread for any number of samples."""

    def __init__(self, encoder: SpeechEncoder, *, beside: bool) -> None:
        self._encoder = encoder
        self._beside = beside

    async def push(self, samples: Samples) -> bytes:
        if self._beside or len(samples) > _SHORT:
            return await asyncio.to_thread(self._encoder.push, samples)
        return self._encoder.push(samples)

    async def finish(self) -> bytes:
        return await asyncio.to_thread(self._encoder.finish) if self._beside else self._encoder.finish()
