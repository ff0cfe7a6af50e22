"""Voice activity detection: where a turn of the user starts and ends.

The detector is WebRTC's, by `webrtcvad-wheels`: 2.5 us for a frame of 20 ms, no model file and no dependency. (Silero's runs a
network in torch or onnxruntime for each frame.)
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import soxr
import webrtcvad

from omni.errors import InputError
from omni.serve.body import convert
from omni.serve.realtime.formats import Pcm

_RATE = 16000
"""Sample rate of the detector's input, in Hz."""
_FRAME_MS = 20
_FRAME = _RATE * _FRAME_MS // 1000
_WINDOW = 10
"""Frames that decide together: single frames are wrong too often."""
_MOST_AGGRESSIVE = 3
"""WebRTC's mode that takes the least noise for speech."""
_MOST_MS = 10_000


class TurnDetection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of OpenAI's `server_vad`. threshold: the share of the last 200 ms that must be voiced. prefix_padding_ms: of
    sound before the speech that belongs to the turn. silence_duration_ms: of silence that ends it. create_response: at its end.
    interrupt_response: at its start."""

    type: str = "server_vad"
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: None = None

    def check(self, field: str) -> None:
        """Raises InputError."""
        if not 0 <= self.threshold <= 1:
            raise InputError(f"{field}.threshold", f"{self.threshold} is out of range", "use 0 to 1")
        for name in ("prefix_padding_ms", "silence_duration_ms"):
            value = self.__getattribute__(name)
            if not 0 <= value <= _MOST_MS:
                raise InputError(f"{field}.{name}", f"{value} is out of range", f"use 0 to {_MOST_MS}")


class SemanticTurnDetection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's `semantic_vad`, by silence alone: no model judges whether the user has finished. eagerness: how soon silence ends a
    turn."""

    type: Literal["semantic_vad"] = "semantic_vad"
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True

    @property
    def threshold(self) -> float:
        return 0.5

    @property
    def prefix_padding_ms(self) -> int:
        return 300

    @property
    def silence_duration_ms(self) -> int:
        return _SILENCE_MS[self.eagerness]

    def check(self, field: str) -> None:
        """See `TurnDetection`."""


Turns = TurnDetection | SemanticTurnDetection
_SILENCE_MS = {"low": 1500, "medium": 800, "auto": 800, "high": 400}


def read_turns(fields: Mapping[str, Any], at: str) -> Turns:
    """Raises InputError."""
    given = str(fields.get("type", "server_vad"))
    kinds: dict[str, type[Turns]] = {"server_vad": TurnDetection, "semantic_vad": SemanticTurnDetection}
    if given not in kinds:
        remedy = 'use "server_vad" or "semantic_vad", or null and commit turns yourself'
        raise InputError(f"{at}.type", f'"{given[:40]}" is not supported', remedy)
    turns: Turns = convert(fields, kinds[given], at)
    turns.check(at)
    return turns


@dataclass(frozen=True, slots=True)
class TurnStart:
    """at: position of the first voiced sample."""

    at: int


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """at: position of the first sample after the silence."""

    at: int


class TurnDetector:
    """Positions are in samples of the input since `at`'s origin. rate: of the input, in Hz. at: position of the first sample."""

    def __init__(self, options: Turns, rate: int, at: int) -> None:
        self._rate = rate
        self._at = at
        self._needed = max(1, math.ceil(options.threshold * _WINDOW))
        self._silence = math.ceil(options.silence_duration_ms / _FRAME_MS)
        self._vad = webrtcvad.Vad(_MOST_AGGRESSIVE)
        # A voice needs no better quality to be found, and a low one delays less.
        self._resample = soxr.ResampleStream(rate, _RATE, 1, dtype="int16", quality="LQ")
        self._left = b""
        self._window: deque[bool] = deque(maxlen=_WINDOW)
        self._frames = 0
        self._last_voiced = 0
        self.speaking = False

    @property
    def lookback_ms(self) -> int:
        """The longest time before the newest sample at which a turn may still be found to have started, without padding."""
        return (_WINDOW + 5) * _FRAME_MS

    def push(self, samples: Pcm) -> list[TurnStart | TurnEnd]:
        """Turns that start and end with further samples, in order."""
        data = self._left + self._resample.resample_chunk(samples).tobytes()
        size = 2 * _FRAME
        whole = len(data) - len(data) % size
        self._left = data[whole:]
        found = (self._frame(data[begin : begin + size]) for begin in range(0, whole, size))
        return [turn for turn in found if turn is not None]

    def reset(self) -> None:
        """Ends the turn, if there is one."""
        self.speaking = False
        self._window.clear()

    def _frame(self, frame: bytes) -> TurnStart | TurnEnd | None:
        voiced = self._vad.is_speech(frame, _RATE)
        self._window.append(voiced)
        self._frames += 1
        enough = sum(self._window) >= self._needed
        if voiced and enough:
            self._last_voiced = self._frames
        if enough and not self.speaking:
            self.speaking = True
            return TurnStart(self._position(self._frames - len(self._window) + self._window.index(True)))
        if self.speaking and not enough and self._frames - self._last_voiced >= self._silence:
            self.speaking = False
            return TurnEnd(self._position(self._frames))
        return None

    def _position(self, frames: int) -> int:
        return self._at + frames * self._rate * _FRAME_MS // 1000
