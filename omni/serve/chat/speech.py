"""The sound of an answer."""

import base64

import torch

from omni.serve.audio.encoded_sound import EncodedSound
from omni.serve.audio.encoder_pool import EncoderPool

_THREE = 3
"""Bytes that base64 writes without padding: joined, the texts of such slices are the text of the whole."""


class AnswerSound:
    """Samples to base64 of a file in `format`, in slices that can be joined."""

    def __init__(self, format: str, pool: EncoderPool) -> None:
        self._sound = EncodedSound(format, pool)
        self._left = b""

    async def push(self, samples: torch.Tensor, sample_rate: int) -> str:
        """Base64 that is ready, perhaps none."""
        data = self._left + await self._sound.push(samples, sample_rate)
        whole = len(data) - len(data) % _THREE
        self._left = data[whole:]
        return base64.b64encode(data[:whole]).decode()

    async def finish(self) -> str:
        """Ends the sound and returns the rest of it in base64."""
        rest, self._left = self._left + await self._sound.finish(), b""
        return base64.b64encode(rest).decode()
