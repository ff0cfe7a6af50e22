"""What a request gives back."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from omni.errors import InputError, OmniError
from omni.media import save_wav


@dataclass(frozen=True, slots=True)
class StageMetrics:
    """One stage's share of a request.

    counts: its totals (`"tokens"`, `"frames"`, ...).
    seconds: from when the request was ready for the stages to the stage's end.
    """

    counts: Mapping[str, int]
    seconds: float

    @property
    def tokens_per_second(self) -> float | None:
        """None for a stage that makes no tokens."""
        tokens = self.counts.get("tokens")
        return tokens / self.seconds if tokens is not None and self.seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Metrics:
    """Times of one request, in seconds, from its submission unless said otherwise. None where it did not come to that.

    queued: until a front-end thread took it up, downloads included. prepare: from there until it was ready for the stages (media,
    tokens, features); it may then wait for a place there (`engine.max_active_requests`).
    ttft: time to the first text token. first_audio: time to the first sample. total: time to the end.
    audio_seconds: length of the speech. rtf: real-time factor, time to the last sample / `audio_seconds`.
    stages: by stage, those that are done.
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
    """What the model held of one token: natural logarithms of probabilities, before penalties, temperature and the like.

    rank: the token's place among all ids by likelihood, 1 is the likeliest. top: of the likeliest ids, as many as were asked for.
    """

    id: int
    logprob: float
    rank: int
    top: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of an answer, as it comes.

    text: new text, `""` if none. audio: new samples, float32 `[n]` on the host, or None. sample_rate: Hz, with audio.
    index: which request of a list. sample: which of the `n` answers to it.
    logprobs, prompt_logprobs: of further tokens, in order, each once; they may come later than the tokens' text.
    finish_reasons: why they ended (`"stop"`, `"length"`, ...), of the stages that are done by now.
    finished: the request's last piece; it brings metrics and usage, and the error of a request of a list that failed.
    """

    index: int = 0
    sample: int = 0
    text: str = ""
    audio: torch.Tensor | None = None
    sample_rate: int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    finish_reasons: Mapping[str, str] = field(default_factory=dict)
    finished: bool = False
    metrics: Metrics | None = None
    usage: Usage | None = None
    error: OmniError | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A whole answer.

    audio: float32 `[n]` on the host, None if there is none. sample_rate: Hz. finish_reasons: by stage.
    tokens: the ids that the stage that writes the text generated, those of a stop string included, which `text` ends before.
    logprobs: of each of `tokens`, if asked for. prompt_logprobs: of the prompt's tokens but the first, which nothing foretells.
    error: None, or why the request failed; the rest is then what there was until it did.
    alternatives: with `n` above 1, the other answers, in order.
    """

    text: str
    audio: torch.Tensor | None
    sample_rate: int | None
    finish_reasons: Mapping[str, str]
    usage: Usage
    metrics: Metrics
    error: OmniError | None = None
    tokens: tuple[int, ...] = ()
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
