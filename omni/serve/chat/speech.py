"""The sound of an answer."""

import base64

import torch

from omni.serve.audio.encode import SpeechEncoder, encoder_for

_THREE = 3
"""Bytes that base64 writes without padding: joined, the texts of such slices are the text of the whole."""


class AnswerSound:
    """Samples to base64 of a file in `format`, in slices that can be joined."""

    def __init__(self, format: str) -> None:
        self._format = format
        self._encoder: SpeechEncoder | None = None
        self._left = b""

    def push(self, samples: torch.Tensor, sample_rate: int) -> str:
        """Base64 that is ready, perhaps none."""
        if self._encoder is None:
            self._encoder = encoder_for(self._format, sample_rate)
        return self._slice(self._encoder.push(samples.numpy()))

    def finish(self) -> str:
        """The rest."""
        rest = self._encoder.finish() if self._encoder is not None else b""
        rest, self._left = self._left + rest, b""
        return base64.b64encode(rest).decode()

    def _slice(self, data: bytes) -> str:
        data = self._left + data
        whole = len(data) - len(data) % _THREE
        self._left = data[whole:]
        return base64.b64encode(data[:whole]).decode()
