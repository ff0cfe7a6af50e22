"""Turns the events of an answer into its outputs, in the user's threads, never in the engine's."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from omni.api.request import Event, Started
from omni.api.results import Metrics, Output, Result, StageMetrics, TokenLogprob, Usage
from omni.engine import RequestFailed, RequestFinished, StageFinished, StageOutput
from omni.errors import OmniError, ReturnedError, is_unicode, quoted, type_of
from omni.frontend.base import TextDecoder
from omni.payload import AudioChunk, CodecFrames, GeneratedTokens, LogprobsChunk, Payload


class RequestOutput:
    """One answer so far. index: of the request in its call. sample: of the answer to it. decoder, text_stage: None where no stage
    writes text. keep: whether everything is kept for `result`."""

    def __init__(
        self, index: int, sample: int, decoder: TextDecoder | None, text_stage: str | None, keep: bool
    ) -> None:
        self.index = index
        self.sample = sample
        self.started = False
        self.finished = False
        self.error: OmniError | None = None
        self._after_stop: Callable[[Sequence[int]], str] = lambda withheld: ""
        self._decoder = decoder
        self._text_stage = text_stage
        self._keep = keep
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: list[TokenLogprob] = []
        self._audio: list[NDArray[np.float32]] = []
        self._sample_rate: int | None = None
        self._codes: list[torch.Tensor] = []
        self._outputs: dict[str, list[Payload]] = {}
        self._finish_reasons: dict[str, str] = {}
        self._prompt_tokens = 0
        self._times = _Times()

    def take(self, at: float, event: Event) -> Output | None:
        """The event's output, if any."""
        match event:
            case Started():
                self.started = True
                self._prompt_tokens = event.prompt_tokens
                self._after_stop = event.after_stop
                self._times.taken, self._times.started = event.taken, at
                return None
            case StageOutput(modality="text", meta=GeneratedTokens() as tokens) if self._decoder is not None:
                self._times.token(at)
                return self._text(self._read(self._decoder, tokens.ids), tokens.ids)
            case StageOutput(modality="text", meta=LogprobsChunk() as logprobs):
                return self._scores(logprobs)
            case StageOutput(modality="audio", meta=AudioChunk() as audio):
                return self._sound(at, audio)
            case StageOutput(modality="codes", meta=CodecFrames()):
                return self._frames(event.tensors["codes"])
            case StageOutput():
                return self._other(event.modality, Payload(event.meta, event.tensors))
            case StageFinished():
                self._finish_reasons[event.stage] = event.reason
                self._times.stage(at, event.stage, event.counts)
                if event.stage != self._text_stage or self._decoder is None:
                    return None
                return self._text(self._last_text(self._decoder, event.withheld), event.withheld)
            case RequestFinished():
                return self.end(at, None)
            case RequestFailed():
                return self.end(at, event.error)

    def end(self, at: float, error: OmniError | None) -> Output:
        self.finished, self.error = True, error
        self._times.end = at
        return self._output(finished=True, metrics=self._times.metrics(), usage=self._usage(), error=error)

    def result(self) -> Result:
        """Returns the whole answer. Requires `keep`."""
        return Result(
            text="".join(self._texts),
            audio=torch.from_numpy(np.concatenate(self._audio)) if self._audio else None,
            sample_rate=self._sample_rate,
            finish_reasons=dict(self._finish_reasons),
            usage=self._usage(),
            metrics=self._times.metrics(),
            error=self.error,
            tokens=tuple(self._tokens),
            codes=torch.cat(self._codes) if self._codes else None,
            outputs={modality: tuple(payloads) for modality, payloads in self._outputs.items()},
            logprobs=tuple(self._logprobs),
            prompt_logprobs=tuple(self._prompt_logprobs),
        )

    def _read(self, decoder: TextDecoder, ids: Sequence[int]) -> str:
        if self._keep:
            self._tokens += ids
        return _text_of(decoder.push(ids), decoder.push)

    def _last_text(self, decoder: TextDecoder, withheld: Sequence[int]) -> str:
        """The rest of the text. withheld: tokens that a stop string ends in."""
        text = self._read(decoder, withheld) + _text_of(decoder.finish(), decoder.finish)
        return text[: len(text) - len(self._after_stop(withheld))]

    def _text(self, text: str, ids: Sequence[int]) -> Output | None:
        if self._keep:
            self._texts.append(text)
        return self._output(text=text, tokens=tuple(ids)) if text or ids else None

    def _frames(self, codes_nG: torch.Tensor) -> Output:
        if self._keep:
            self._codes.append(codes_nG)
        return self._output(codes=codes_nG)

    def _other(self, modality: str, payload: Payload) -> Output:
        if self._keep:
            self._outputs.setdefault(modality, []).append(payload)
        return self._output(outputs={modality: (payload,)})

    def _scores(self, chunk: LogprobsChunk) -> Output:
        logprobs = _token_logprobs(chunk)
        if self._keep:
            (self._prompt_logprobs if chunk.prompt else self._logprobs).extend(logprobs)
        return self._output(prompt_logprobs=logprobs) if chunk.prompt else self._output(logprobs=logprobs)

    def _sound(self, at: float, chunk: AudioChunk) -> Output | None:
        if not len(chunk.samples):
            return None
        # A message's array may be read-only or shared; the user may write to the tensor.
        samples = chunk.samples.copy()
        self._times.audio(at, len(samples) / chunk.sample_rate)
        self._sample_rate = chunk.sample_rate
        if self._keep:
            self._audio.append(samples)
        return self._output(audio=torch.from_numpy(samples), sample_rate=chunk.sample_rate)

    def _output(self, **fields: Any) -> Output:
        reasons = dict(self._finish_reasons)
        return Output(self.index, self.sample, finish_reasons=reasons, prompt_tokens=self._prompt_tokens, **fields)

    def _usage(self) -> Usage:
        stages = self._times.stages.items()
        return Usage(self._prompt_tokens, {name: s.counts["tokens"] for name, s in stages if "tokens" in s.counts})


def _token_logprobs(chunk: LogprobsChunk) -> tuple[TokenLogprob, ...]:
    rows = zip(chunk.ids.tolist(), chunk.logprobs.tolist(), chunk.ranks.tolist(), strict=True)
    return tuple(
        TokenLogprob(ids[0], values[0], rank, dict(zip(ids[1:], values[1:], strict=True))) for ids, values, rank in rows
    )


class _Times:
    """Times of one request (`time.perf_counter`)."""

    def __init__(self) -> None:
        self.stages: dict[str, StageMetrics] = {}
        self.end: float | None = None
        self._submitted = time.perf_counter()
        self.taken: float | None = None
        self.started: float | None = None
        self._first_token: float | None = None
        self._first_audio: float | None = None
        self._last_audio: float | None = None
        self._audio_seconds = 0.0

    def token(self, at: float) -> None:
        if self._first_token is None:
            self._first_token = at

    def audio(self, at: float, seconds: float) -> None:
        if self._first_audio is None:
            self._first_audio = at
        self._last_audio = at
        self._audio_seconds += seconds

    def stage(self, at: float, stage: str, counts: Mapping[str, int]) -> None:
        since = self._submitted if self.started is None else self.started
        self.stages[stage] = StageMetrics(dict(counts), at - since)

    def metrics(self) -> Metrics:
        return Metrics(
            queued=self._since(self.taken),
            prepare=self.started - self.taken if self.started is not None and self.taken is not None else None,
            ttft=self._since(self._first_token),
            first_audio=self._since(self._first_audio),
            total=(time.perf_counter() if self.end is None else self.end) - self._submitted,
            audio_seconds=self._audio_seconds,
            rtf=(self._last_audio - self._submitted) / self._audio_seconds if self._last_audio is not None else None,
            stages=dict(self.stages),
        )

    def _since(self, at: float | None) -> float | None:
        return None if at is None else at - self._submitted


def _text_of(returned: object, code: object) -> str:
    if isinstance(returned, str):
        if returned.isascii() or is_unicode(returned):
            return returned
        raise ReturnedError(f"the text decoder returned {quoted(returned)}: return valid Unicode", code)
    raise ReturnedError(f"the text decoder returned {type_of(returned)}: return text, empty if none is complete", code)
