"""From a request's events to what its user sees. Runs on the user's side, never on the engine's thread."""

import time
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from omni.api.results import Metrics, Output, Result, StageMetrics, Usage
from omni.api.ticket import Event, Started
from omni.chunks import AudioChunk, TokenChunk
from omni.engine import OutputChunk, RequestFailed, RequestFinished, StageFinished
from omni.errors import OmniError, StageError
from omni.frontend.base import TextDecoder


class Reply:
    """One request's answer so far. keep: whether text and audio are kept for `result`."""

    def __init__(self, index: int, decoder: TextDecoder, text_stage: str, keep: bool) -> None:
        self.index = index
        self.done = False
        self.error: OmniError | None = None
        self._decoder = decoder
        self._text_stage = text_stage
        self._keep = keep
        self._texts: list[str] = []
        self._audio: list[NDArray[np.float32]] = []
        self._sample_rate: int | None = None
        self._finish_reasons: dict[str, str] = {}
        self._prompt_tokens = 0
        self._times = _Times()

    def take(self, at: float, event: Event) -> Output | None:
        """What the event gives the user, if anything. Raises StageError for a chunk of another kind."""
        match event:
            case Started():
                self._prompt_tokens = event.prompt_tokens
                self._times.started(event.taken, at)
                return None
            case OutputChunk(modality="text", meta=TokenChunk() as tokens):
                self._times.token(at)
                return self._give_text(self._decoder.push(tokens.ids))
            case OutputChunk(meta=AudioChunk() as audio):
                return self._give_audio(at, audio)
            case OutputChunk():
                problem = f"{event.modality} as a {type(event.meta).__name__} cannot be given to a user"
                raise StageError("frontend", "taking an output", problem)
            case StageFinished():
                self._finish_reasons[event.stage] = event.reason
                self._times.stage(at, event.stage, event.counts)
                return self._give_text(self._decoder.finish()) if event.stage == self._text_stage else None
            case RequestFinished():
                return self._end(at, None)
            case RequestFailed():
                return self.fail(at, event.error)

    def fail(self, at: float, error: OmniError) -> Output:
        """The last output: why there is no more."""
        return self._end(at, error)

    def result(self) -> Result:
        """All of it. Needs `keep`."""
        return Result(
            text="".join(self._texts),
            audio=torch.from_numpy(np.concatenate(self._audio)) if self._audio else None,
            sample_rate=self._sample_rate,
            finish_reasons=dict(self._finish_reasons),
            usage=self._usage(),
            metrics=self._times.metrics(),
            error=self.error,
        )

    def _give_text(self, text: str) -> Output | None:
        if self._keep:
            self._texts.append(text)
        return Output(self.index, text=text, finish_reasons=dict(self._finish_reasons)) if text else None

    def _give_audio(self, at: float, chunk: AudioChunk) -> Output | None:
        if not len(chunk.samples):
            return None
        # A message's array may be read-only or shared; the user's tensor is the user's own.
        samples = chunk.samples.copy()
        self._times.audio(at, len(samples) / chunk.sample_rate)
        self._sample_rate = chunk.sample_rate
        if self._keep:
            self._audio.append(samples)
        audio = torch.from_numpy(samples)
        reasons = dict(self._finish_reasons)
        return Output(self.index, audio=audio, sample_rate=chunk.sample_rate, finish_reasons=reasons)

    def _end(self, at: float, error: OmniError | None) -> Output:
        self.done, self.error = True, error
        self._times.end = at
        return Output(
            self.index,
            finish_reasons=dict(self._finish_reasons),
            finished=True,
            metrics=self._times.metrics(),
            usage=self._usage(),
            error=error,
        )

    def _usage(self) -> Usage:
        stages = self._times.stages.items()
        return Usage(self._prompt_tokens, {name: s.counts["tokens"] for name, s in stages if "tokens" in s.counts})


class _Times:
    """When things happened to one request (`time.perf_counter`)."""

    def __init__(self) -> None:
        self.stages: dict[str, StageMetrics] = {}
        self.end: float | None = None
        self._submitted = time.perf_counter()
        self._taken: float | None = None
        self._started: float | None = None
        self._first_token: float | None = None
        self._first_audio: float | None = None
        self._last_audio: float | None = None
        self._audio_seconds = 0.0

    def started(self, taken: float, at: float) -> None:
        self._taken, self._started = taken, at

    def token(self, at: float) -> None:
        if self._first_token is None:
            self._first_token = at

    def audio(self, at: float, seconds: float) -> None:
        if self._first_audio is None:
            self._first_audio = at
        self._last_audio = at
        self._audio_seconds += seconds

    def stage(self, at: float, stage: str, counts: Mapping[str, int]) -> None:
        since = self._submitted if self._started is None else self._started
        self.stages[stage] = StageMetrics(dict(counts), at - since)

    def metrics(self) -> Metrics:
        return Metrics(
            queued=self._since(self._taken),
            prepare=self._started - self._taken if self._started is not None and self._taken is not None else None,
            ttft=self._since(self._first_token),
            first_audio=self._since(self._first_audio),
            total=(time.perf_counter() if self.end is None else self.end) - self._submitted,
            audio_seconds=self._audio_seconds,
            rtf=(self._last_audio - self._submitted) / self._audio_seconds if self._last_audio is not None else None,
            stages=dict(self.stages),
        )

    def _since(self, at: float | None) -> float | None:
        return None if at is None else at - self._submitted
