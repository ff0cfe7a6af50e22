"""Pictures and sounds of requests: as messages have them, and as a host has them for downloads."""

import base64
import io
from collections.abc import Mapping

import numpy as np
from PIL import Image
from soundfile import write

from bench.media_host import MediaHost

_WITH_MEDIA = ("media", "http data", "http media")
"""Neighbours whose requests have a picture and a sound."""
PHOTOGRAPHS = 8


def photograph(salt: int) -> bytes:
    """A JPEG of 1024 x 768, smooth with some noise, as cameras make them."""
    noise = np.random.default_rng(salt).normal(size=(768, 1024, 3))
    ramp = np.linspace(0, 255, 1024)[None, :, None] + 10 * noise
    file = io.BytesIO()
    Image.fromarray(ramp.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def recording(salt: int) -> bytes:
    """A wav of two seconds at 16 kHz."""
    file = io.BytesIO()
    write(file, np.random.default_rng(salt).normal(0, 0.1, 32_000).astype(np.float32), 16_000, format="WAV")
    return file.getvalue()


class RequestMedia:
    """The pictures and sounds of requests. host: has all `files`; None without downloads."""

    def __init__(self, files: Mapping[str, bytes], host: MediaHost | None = None) -> None:
        self._files = files
        self._host = host

    @staticmethod
    def made() -> dict[str, bytes]:
        pictures = {f"{number}.jpg": photograph(number) for number in range(PHOTOGRAPHS)}
        return pictures | {f"{number}.wav": recording(number) for number in range(PHOTOGRAPHS)}

    def content(self, neighbour: str, message: str) -> str | list[dict[str, object]]:
        """The message that is sent. Its text determines its files."""
        if neighbour not in _WITH_MEDIA:
            return message
        number = int(message.strip(".").split()[-1]) % PHOTOGRAPHS
        picture, sound = (self._url(neighbour, f"{number}.{ending}") for ending in ("jpg", "wav"))
        return [
            {"type": "image_url", "image_url": {"url": picture}},
            {"type": "audio_url", "audio_url": {"url": sound}},
            {"type": "text", "text": message},
        ]

    def _url(self, neighbour: str, name: str) -> str:
        if neighbour == "http media":
            assert self._host is not None
            return f"{self._host.url}/{name}"
        kind = {"jpg": "image/jpeg", "wav": "audio/wav"}[name[-3:]]
        return f"data:{kind};base64,{base64.b64encode(self._files[name]).decode()}"
