"""Outputs, results and metrics of requests."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from omni.errors import InputError, OmniError
from omni.media import save_wav
from omni.payload import Payload
from omni.utils.draft_counts import DraftCounts


@dataclass(frozen=True, slots=True)
class StageMetrics:
    """Metrics of one stage for a request. counts: totals (`"tokens"`, `"frames"`, ...). seconds: from the end of the request's
    preparation to the stage's end."""

    counts: Mapping[str, int]
    seconds: float

    @property
    def tokens_per_second(self) -> float | None:
        """None for a stage that generates no tokens."""
        tokens = self.counts.get("tokens")
        return tokens / self.seconds if tokens is not None and self.seconds > 0 else None

    @property
    def drafts(self) -> DraftCounts:
        """Speculative decoding: counts of the request's drafts, over the steps that verified any."""
        return DraftCounts.of(self.counts)


@dataclass(frozen=True, slots=True)
class Metrics:
    """Times of one request in seconds, from its submission unless stated otherwise. None if the event did not happen.

    queued: until its preparation, including downloads. prepare: duration of the preparation (media, tokens, features); the request
    may then wait until the engine can take it (`engine.max_active_requests`).
    ttft: time to the first text token. first_audio: time to the first sample. total: time to the end.
    audio_seconds: length of the speech. rtf: real-time factor, time to the last sample / `audio_seconds`.
    stages: by finished stage.
    """

    queued: float | None
    prepare: float | None
    ttft: float | None
    first_audio: float | None
    total: float
    audio_seconds: float
    rtf: float | None
    stages: Mapping[str, StageMetrics]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. tokens: generated, by stage."""

    prompt_tokens: int
    tokens: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token (natural logarithm), before penalties, temperature and the like. rank: of the token among all
    ids; 1 is the most probable. top: log-probabilities of the most probable ids, as many as requested."""

    id: int
    logprob: float
    rank: int
    top: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of an answer.

    text: new text, `""` if none. tokens: new ids of the text, each once; their text may come later.
    audio: new samples, float32 `[n]` on the host, or None. sample_rate: Hz, with audio.
    index: of the request in a list. sample: of the answer among its `n`.
    codes: new codec frames, int64 `[n, G]` on the host, or None.
    outputs: new payloads of the pipeline's other outputs, by modality, in order: each a struct of its plugin (`meta`) and
    tensors on the host (`tensors`).
    prompt_tokens: length of the prompt, in every piece; 0 while it is not prepared.
    logprobs, prompt_logprobs: of further tokens, in order, each once; they may come later than the tokens' text.
    finish_reasons: of finished stages (`"stop"`, `"length"`, ...).
    finished: whether it is the last piece, with metrics and usage, and the error of a failed request of a list.
    """

    index: int = 0
    sample: int = 0
    text: str = ""
    tokens: tuple[int, ...] = ()
    audio: torch.Tensor | None = None
    sample_rate: int | None = None
    codes: torch.Tensor | None = None
    outputs: Mapping[str, tuple[Payload, ...]] = field(default_factory=dict)
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    finish_reasons: Mapping[str, str] = field(default_factory=dict)
    finished: bool = False
    metrics: Metrics | None = None
    usage: Usage | None = None
    error: OmniError | None = None
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """A whole answer.

    audio: float32 `[n]` on the host, None if there is none. sample_rate: Hz. finish_reasons: by stage. tokens: generated ids of the
    text, including those of a stop string, which `text` does not include. codes: all codec frames, int64 `[n, G]` on the host, None
    if there are none. outputs: all payloads of the pipeline's other outputs, by modality, as of `Output.outputs`. logprobs: of each
    of `tokens`, if requested. prompt_logprobs: of the prompt's tokens except the first, which has none. error: None, or the reason
    of the failure; the other fields then hold the outputs before the error. alternatives: with `n` above 1, the other answers, in
    order.
    """

    text: str
    audio: torch.Tensor | None
    sample_rate: int | None
    finish_reasons: Mapping[str, str]
    usage: Usage
    metrics: Metrics
    error: OmniError | None = None
    tokens: tuple[int, ...] = ()
    codes: torch.Tensor | None = None
    outputs: Mapping[str, tuple[Payload, ...]] = field(default_factory=dict)
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    alternatives: tuple["Result", ...] = ()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the speech as a 16-bit wav file. Raises InputError if there is none or the file cannot be written."""
        if self.audio is None or self.sample_rate is None:
            reasons = f"finish reasons {dict(self.finish_reasons)}"
            why = reasons if self.error is None else f"it failed: {self.error}"
            remedy = 'ask for "audio" in modalities, of a model that speaks'
            raise InputError("audio", f"this result has none ({why})", remedy)
        save_wav(path, self.audio, self.sample_rate)
