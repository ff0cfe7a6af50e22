"""Sound of the user that has not been committed to an item."""

import numpy as np

from omni.serve.realtime.formats import Pcm
from omni.serve.realtime.memory import SessionMemory

FIELD = "input_audio_buffer"
_WIDTH = 2
"""Bytes of a sample in memory."""


class InputBuffer:
    """Holds the user's sound. Positions are in samples since the session's start. begin, end: the positions where the held samples
    begin and end."""

    def __init__(self, memory: SessionMemory) -> None:
        self._memory = memory
        self._chunks: list[Pcm] = []
        self.begin = self.end = 0

    def __len__(self) -> int:
        return self.end - self.begin

    def append(self, samples: Pcm) -> None:
        """Raises InputError, OverloadedError."""
        self._memory.add(_WIDTH * len(samples), FIELD)
        self._chunks.append(samples)
        self.end += len(samples)

    def take(self, until: int | None = None) -> Pcm:
        """Removes and returns the samples before a position, all without one. Their memory is the caller's to give back."""
        joined = np.concatenate(self._chunks) if self._chunks else np.zeros(0, np.int16)
        count = len(self) if until is None else min(max(until - self.begin, 0), len(self))
        # Copies: a view would keep the whole.
        taken, rest = joined[:count].copy(), joined[count:].copy()
        self._chunks = [rest] if len(rest) else []
        self.begin += count
        return taken

    def drop_before(self, position: int) -> None:
        """Whole chunks, and of one chunk the first part."""
        while self._chunks and self.begin < position:
            chunk = self._chunks[0]
            count = min(position - self.begin, len(chunk))
            self._chunks[0:1] = [chunk[count:].copy()] if count < len(chunk) else []
            self._memory.change(-_WIDTH * count)
            self.begin += count

    def clear(self) -> None:
        self.drop_before(self.end)

    def restart(self, position: int) -> None:
        """Further samples are counted from there. The buffer must be empty."""
        self.begin = self.end = position
