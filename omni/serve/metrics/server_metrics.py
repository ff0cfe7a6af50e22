"""Metrics of requests and of the server, and how they are read."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector

from omni.api import AsyncOmni, Output
from omni.serve.errors import describe
from omni.serve.limits import ServeLimits
from omni.serve.metrics.exposition import exposition
from omni.serve.metrics.stages import StageCollector
from omni.serve.observer import Observer, RequestObserver
from omni.stage import Listener
from omni.version import __version__

FIRST = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Buckets of times to the first piece, in seconds."""
BETWEEN = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2, 0.5, 1.0, 2.5, 10.0)
"""Buckets of the time between two tokens, in seconds."""
RTF = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 5.0, 10.0)
SLACK = (-10.0, -5.0, -2.0, -1.0, -0.5, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Buckets of slack, in seconds; those up to 0 are underruns."""
WHOLE = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Buckets of times of whole requests, in seconds."""


class ServerMetrics(Observer):
    """Metrics of one server, in a registry of its own. Observers run on the event loop's thread and never wait for the engine. The
    stages are read when the metrics are requested."""

    def __init__(self, omni: AsyncOmni, limits: ServeLimits, model: str) -> None:
        """model: the name of the model."""
        registry = self.registry = CollectorRegistry()
        self._stages = StageCollector(omni, limits)
        self._kinds: dict[str, _Kind] = {}
        kind, stage = ("kind",), ("kind", "stage")
        self._requests = Counter("omni_requests", "Requests that were accepted.", kind, registry=registry)
        self._finished = Counter("omni_requests_finished", "Requests that were answered.", kind, registry=registry)
        self._cancelled = Counter("omni_requests_cancelled", "Requests whose client left.", kind, registry=registry)
        self._refused = Counter(
            "omni_requests_refused", "Requests that were refused: too many answers under way.", kind, registry=registry
        )
        self._failed = Counter(
            "omni_requests_failed",
            "Requests that ended with an error, by its code.",
            ("kind", "reason"),
            registry=registry,
        )
        self._responses = Counter(
            "omni_http_responses",
            "Answers over HTTP; 499: the client left; 101: a realtime session.",
            ("path", "status"),
            registry=registry,
        )
        self._prompt_tokens = Counter(
            "omni_prompt_tokens", "Tokens of prompts that were answered.", kind, registry=registry
        )
        self._tokens = Counter("omni_generated_tokens", "Tokens of finished answers.", stage, registry=registry)
        self._seconds = _histogram("omni_request_seconds", "Time of an answer.", WHOLE, registry)
        self._first_text = _histogram("omni_first_text_seconds", "Time to the first text token.", FIRST, registry)
        self._first_audio = _histogram("omni_first_audio_seconds", "Time to the first sample.", FIRST, registry)
        self._token_latency = _histogram(
            "omni_token_latency_seconds", "Time between two text tokens of an answer.", BETWEEN, registry
        )
        self._rtf = _histogram("omni_rtf", "Time to the last sample by the speech's length.", RTF, registry)
        self._slack = _histogram(
            "omni_stream_slack_seconds",
            "Sound ahead of a listener when the next chunk comes; below 0: silence.",
            SLACK,
            registry,
        )
        self._underruns = Counter("omni_stream_underruns", "Chunks that came too late.", kind, registry=registry)
        self._silence = Counter(
            "omni_stream_silence_seconds", "Time in which listeners waited.", kind, registry=registry
        )
        self._speech = Counter("omni_speech_seconds", "Length of the speech made.", kind, registry=registry)
        in_flight = Gauge("omni_answers_in_flight", "Answers under way, waiting ones included.", registry=registry)
        in_flight.set_function(lambda: limits.in_flight)
        sessions = Gauge("omni_realtime_sessions", "Realtime sessions that are open.", registry=registry)
        sessions.set_function(lambda: limits.sessions)
        held = Gauge("omni_request_body_bytes", "Bodies of the requests under way.", registry=registry)
        held.set_function(lambda: limits.held_bytes)
        up = Gauge("omni_engine_up", "1 while the engine runs, as /health.", registry=registry)
        up.set_function(lambda: float(omni.failure is None and omni.interruption is None))
        Info("omni_build", "Version and model.", registry=registry).info({"version": __version__, "model": model})
        ProcessCollector(registry=registry)
        registry.register(self._stages)

    def started(self, kind: str, answers: int) -> RequestObserver:
        known = self._kind(kind)
        known.requests.inc()
        return _Request(self, known, answers)

    def refused(self, kind: str) -> None:
        self._kind(kind).refused.inc()

    def responded(self, path: str, status: int) -> None:
        """path: of the table of routes. status: of HTTP."""
        self._responses.labels(path, str(status)).inc()

    def failed(self, kind: str, error: BaseException) -> None:
        self._failed.labels(kind, describe(error, 0).body.error.code or "").inc()

    def generated(self, kind: str, tokens: Mapping[str, int]) -> None:
        """tokens: of a finished answer, by stage."""
        for stage, count in tokens.items():
            self._tokens.labels(kind, stage).inc(count)

    async def text(self) -> bytes:
        """Returns the metrics in Prometheus' format. A thread computes them, so that the event loop continues."""
        await self._stages.read()
        return await asyncio.to_thread(exposition, self.registry)

    def _kind(self, kind: str) -> "_Kind":
        """Looking labels up takes longer than counting."""
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds[kind] = _Kind(
                name=kind,
                requests=self._requests.labels(kind),
                finished=self._finished.labels(kind),
                cancelled=self._cancelled.labels(kind),
                refused=self._refused.labels(kind),
                prompt_tokens=self._prompt_tokens.labels(kind),
                seconds=self._seconds.labels(kind),
                first_text=self._first_text.labels(kind),
                first_audio=self._first_audio.labels(kind),
                token_latency=self._token_latency.labels(kind),
                rtf=self._rtf.labels(kind),
                slack=self._slack.labels(kind),
                underruns=self._underruns.labels(kind),
                silence=self._silence.labels(kind),
                speech=self._speech.labels(kind),
            )
        return known


def _histogram(name: str, text: str, buckets: Iterable[float], registry: CollectorRegistry) -> Histogram:
    return Histogram(name, text, ("kind",), buckets=tuple(buckets), registry=registry)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """The metrics of one kind of request."""

    name: str
    requests: Counter
    finished: Counter
    cancelled: Counter
    refused: Counter
    prompt_tokens: Counter
    seconds: Histogram
    first_text: Histogram
    first_audio: Histogram
    token_latency: Histogram
    rtf: Histogram
    slack: Histogram
    underruns: Counter
    silence: Counter
    speech: Counter


@dataclass(slots=True)
class _Answer:
    """token: when the last text token came, 0 before. audio: the same of sound. sound: its length so far, in seconds."""

    token: float = 0.0
    audio: float = 0.0
    sound: float = 0.0
    listener: Listener = field(default_factory=Listener)


class _Request(RequestObserver):
    """One request's times. The listener's clock stops while the client does not read: a delay then is not the server's."""

    def __init__(self, metrics: ServerMetrics, kind: _Kind, answers: int) -> None:
        self._metrics = metrics
        self._kind = kind
        self._left = answers
        self._answers: dict[tuple[int, int], _Answer] = {}
        self._since = self._given = time.perf_counter()
        self._taking = 0.0

    def output(self, output: Output) -> None:
        now = self._given = time.perf_counter()
        key = output.index, output.sample
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = _Answer()
        if output.tokens:
            self._text(answer, now, len(output.tokens))
        if output.audio is not None and output.sample_rate:
            self._sound(answer, now, len(output.audio) / output.sample_rate)
        if output.finished:
            self._last(answer, now, output)

    def taken(self) -> None:
        self._taking += time.perf_counter() - self._given

    def ended(self, error: BaseException | None) -> None:
        if error is not None:
            self._metrics.failed(self._kind.name, error)
        elif self._left:
            self._kind.cancelled.inc()
        else:
            self._kind.finished.inc()

    def _text(self, answer: _Answer, now: float, tokens: int) -> None:
        if answer.token:
            # Tokens that arrive together share the time since the previous ones.
            for _ in range(tokens):
                self._kind.token_latency.observe((now - answer.token) / tokens)
        else:
            self._kind.first_text.observe(now - self._since)
        answer.token = now

    def _sound(self, answer: _Answer, now: float, sound: float) -> None:
        kind = self._kind
        if not answer.audio:
            kind.first_audio.observe(now - self._since)
        answer.audio, answer.sound = now, answer.sound + sound
        kind.speech.inc(sound)
        slack = answer.listener.add_sound(now - self._taking, sound)
        if slack is not None:
            kind.slack.observe(slack)
            if slack < 0:
                kind.underruns.inc()
                kind.silence.inc(-slack)

    def _last(self, answer: _Answer, now: float, output: Output) -> None:
        self._left -= 1
        self._kind.seconds.observe(now - self._since)
        if answer.sound:
            self._kind.rtf.observe((answer.audio - self._since) / answer.sound)
        if output.usage is not None:
            if not output.sample:
                # The answers to a prompt share it.
                self._kind.prompt_tokens.inc(output.usage.prompt_tokens)
            self._metrics.generated(self._kind.name, output.usage.tokens)
