"""`GET /metrics`: counters of requests, answers, speech and stages."""

import re
import threading
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from omni.api import AsyncOmni, Output
from omni.serve.limits import ServeLimits
from omni.serve.metrics import ServerMetrics
from omni.serve.options import ServeOptions
from omni.stage import Listener
from omni.utils.duration_counts import BOUNDS_US, DurationCounts
from omni_text.tiny import write_tiny
from tests.omni.serve.http_server import STRICT, Served, echo_omni, served
from tests.support.echo_family import BREAK, BREAK_LOOP, RATE, SAMPLES
from tests.support.entry_points import REPOSITORY
from tests.support.tiny_omni import tiny_plugins

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
SPOKEN: dict[str, Any] = {**HELLO, "modalities": ["text", "audio"]}

Numbers = Mapping[tuple[str, tuple[str, ...]], float]


def read(server: Served) -> Numbers:
    """Samples by name and the values of their labels, those in the order of their names."""
    response = server.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    found: dict[tuple[str, tuple[str, ...]], float] = {}
    for family in text_string_to_metric_families(response.text):
        assert family.documentation, family.name
        for sample in family.samples:
            key = sample.name, tuple(value for _, value in sorted(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


@pytest.fixture
def fresh(echo_folder: Path) -> Iterator[Served]:
    with served(echo_omni(echo_folder), max_requests=2) as it:
        yield it


def test_requests_and_their_ends_are_counted(fresh: Served) -> None:
    fresh.post(CHAT, json=HELLO)
    fresh.post(CHAT, json={**HELLO, "messages": [{"role": "user", "content": ""}]})
    fresh.post(CHAT, json={**HELLO, "messages": [{"role": "user", "content": BREAK}]})
    fresh.post("/v1/completions", json={"model": "tiny", "prompt": ["one", "two"], "max_tokens": 3})
    with fresh.client() as client:
        stream = client.chat.completions.create(**HELLO, max_tokens=10**9, n=2, stream=True)
        next(iter(stream))
        now = read(fresh)
        assert now["omni_answers_in_flight", ()] == now["omni_requests_running", ()] == 2
        assert fresh.post(CHAT, json=HELLO).status_code == 503
        stream.close()
    fresh.assert_nothing_held()
    found = read(fresh)
    assert found["omni_requests_total", ("chat",)] == 4
    assert found["omni_requests_finished_total", ("chat",)] == 1
    assert found["omni_requests_failed_total", ("chat", "invalid_value")] == 1
    assert found["omni_requests_failed_total", ("chat", "internal_error")] == 1
    assert found["omni_requests_refused_total", ("chat",)] == 1
    assert found["omni_requests_cancelled_total", ("chat",)] == 1
    assert found["omni_requests_finished_total", ("completions",)] == 1
    assert found["omni_request_seconds_count", ("completions",)] == 2
    assert found["omni_http_responses_total", (CHAT, "400")] == 1
    assert found["omni_http_responses_total", (CHAT, "503")] == 1
    assert found["omni_answers_in_flight", ()] == found["omni_requests_running", ()] == 0
    assert (found["omni_engine_up", ()], found["omni_requests_waiting", ()]) == (1, 0)


def test_tokens_and_speech_are_counted(fresh: Served) -> None:
    fresh.post(CHAT, json={**SPOKEN, "n": 2, "max_tokens": 6})
    found = read(fresh)
    assert found["omni_prompt_tokens_total", ("chat",)] == 5
    assert found["omni_generated_tokens_total", ("chat", "writer")] == 12
    assert found["omni_speech_seconds_total", ("chat",)] == pytest.approx(12 * SAMPLES / RATE)
    assert found["omni_first_text_seconds_count", ("chat",)] == found["omni_first_audio_seconds_count", ("chat",)] == 2
    assert found["omni_token_latency_seconds_count", ("chat",)] == 10
    assert found["omni_rtf_count", ("chat",)] == found["omni_request_seconds_count", ("chat",)] == 2
    # Every chunk but the first of each answer.
    assert found["omni_stream_slack_seconds_count", ("chat",)] == 10


def test_slack_is_that_of_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    from bench.listening import Chunk, SoundStream

    dice = np.random.default_rng(1)
    for _ in range(50):
        came, sounds = np.cumsum(dice.exponential(0.1, 20)), dice.exponential(0.1, 20)
        chunks = tuple(Chunk(at, sound) for at, sound in zip(came.tolist(), sounds.tolist(), strict=True))
        listener = Listener()
        slacks = [listener.add_sound(chunk.came, chunk.sound) for chunk in chunks]
        assert slacks == [None, *SoundStream(0.0, chunks).slacks]


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("omni.serve.metrics.server_metrics.time.perf_counter", lambda: self.now)


def test_times_are_those_of_the_clock(echo: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer with two tokens together, a late chunk, and a client that does not read for a while."""
    metrics = ServerMetrics(echo.omni, ServeLimits(ServeOptions()), "tiny")
    clock = Clock(monkeypatch)

    def second(tenths: int) -> torch.Tensor:
        return torch.zeros(tenths * RATE // 10)

    request = metrics.started("chat", 1)
    for at, output, taken in (
        (100.5, Output(text="a", tokens=(1,)), 100.5),
        (100.7, Output(text="bc", tokens=(2, 3)), 100.7),
        (101.0, Output(audio=second(2), sample_rate=RATE), 101.0),
        (101.5, Output(audio=second(10), sample_rate=RATE), 111.5),  # 0.3 s late; then the client sleeps
        (111.6, Output(audio=second(10), sample_rate=RATE), 111.6),  # 0.9 s ahead
        (112.0, Output(finished=True), 112.0),
    ):
        clock.now = at
        request.output(output)
        clock.now = taken
        request.taken()
    request.ended(None)
    value = metrics.registry.get_sample_value
    chat = {"kind": "chat"}
    assert value("omni_first_text_seconds_sum", chat) == pytest.approx(0.5)
    assert value("omni_first_audio_seconds_sum", chat) == pytest.approx(1.0)
    assert value("omni_token_latency_seconds_count", chat) == 2
    assert value("omni_token_latency_seconds_sum", chat) == pytest.approx(0.2)
    assert value("omni_stream_underruns_total", chat) == 1
    assert value("omni_stream_silence_seconds_total", chat) == pytest.approx(0.3)
    assert value("omni_stream_slack_seconds_bucket", {**chat, "le": "-0.2"}) == 1
    assert value("omni_stream_slack_seconds_bucket", {**chat, "le": "0.5"}) == 1
    assert value("omni_stream_slack_seconds_bucket", {**chat, "le": "1.0"}) == 2
    assert value("omni_rtf_sum", chat) == pytest.approx(11.6 / 2.2)
    assert value("omni_request_seconds_sum", chat) == pytest.approx(12.0)


def test_metrics_have_the_usage_and_counters_of_stages(fresh: Served) -> None:
    assert read(fresh)["omni_stage_usage", ("requests", "writer")] == 0
    with fresh.client() as client:
        stream = client.chat.completions.create(**HELLO, max_tokens=10**9, stream=True)
        next(iter(stream))
        assert read(fresh)["omni_stage_usage", ("requests", "writer")] == 1
        stream.close()


def test_a_stage_says_how_much_it_can_hold(tmp_path: Path) -> None:
    """Its share in use is known, also on the dashboard."""
    write_tiny(tmp_path / "tiny", seed=1)
    limits: dict[str, object] = {"text.max_num_seqs": 3, "text.num_blocks": 40}
    omni = AsyncOmni(tmp_path / "tiny", device="cpu", plugins=tiny_plugins(), overrides={**STRICT, **limits})
    with served(omni) as server, server.client() as client:
        stream = client.chat.completions.create(**HELLO, max_tokens=500, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        found = read(server)
        assert found["omni_stage_capacity", ("rows", "text")] == 3
        assert found["omni_stage_capacity", ("pages", "text")] == 40
        assert found["omni_stage_usage", ("rows", "text")] == 1
        assert 0 < found["omni_stage_usage", ("blocks", "text")] <= 40
        stream.close()


def test_a_stage_with_a_drafter_says_how_many_drafts_are_accepted(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny", seed=1)
    drafter: dict[str, object] = {"text.drafter": "ngram", "text.draft_tokens": 3, "text.adaptive_drafts": False}
    omni = AsyncOmni(tmp_path / "tiny", device="cpu", plugins=tiny_plugins(), overrides={**STRICT, **drafter})
    with served(omni) as server:
        # Random weights do not repeat themselves as a drafter guesses; the penalty has an answer repeat itself in the end.
        for penalty in (0, -2):
            body = {**HELLO, "max_tokens": 200, "temperature": 0, "frequency_penalty": penalty, "ignore_eos": True}
            assert server.post(CHAT, json=body).status_code == 200
        found, counters = read(server), omni.counters()["text"]
        for position in "123":
            drafted, accepted = (counters[f"{name}_{position}"] for name in ("drafted_tokens", "accepted_drafts"))
            assert found["omni_drafted_tokens_total", (position, "text")] == drafted > accepted
            assert found["omni_accepted_drafts_total", (position, "text")] == accepted > 0
        assert ("omni_drafted_tokens_total", ("4", "text")) not in found


def test_the_time_of_sampling_is_a_histogram(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny", seed=1)
    omni = AsyncOmni(tmp_path / "tiny", device="cpu", plugins=tiny_plugins(), overrides=STRICT)
    with served(omni) as server:
        assert server.post(CHAT, json=HELLO).status_code == 200
        counters, found = omni.counters()["text"], read(server)
    name, steps = "omni_sample_tokens_seconds", counters["steps"]
    assert found[f"{name}_count", ("text",)] == found[f"{name}_bucket", ("+Inf", "text")] == steps > 0
    assert found[f"{name}_sum", ("text",)] == pytest.approx(counters["sample_tokens_us"] / 1e6)
    groups = DurationCounts.of("sample_tokens", counters).counts
    # The last group has no bound; a busy machine may have all steps in it.
    for bound, count in zip(BOUNDS_US, accumulate(groups), strict=False):
        assert found[f"{name}_bucket", (str(bound / 1e6), "text")] == count
    assert not any(key[0] == "omni_stage_events_total" and "sample_tokens" in "".join(key[1]) for key in found)


def test_an_engine_that_is_gone_is_not_up(echo_folder: Path) -> None:
    with served(echo_omni(echo_folder)) as doomed:
        doomed.post(CHAT, json={**HELLO, "messages": [{"role": "user", "content": BREAK_LOOP}]})
        found = read(doomed)
        assert found["omni_engine_up", ()] == 0
        assert found["omni_requests_failed_total", ("chat", "engine_failed")] == 1


def test_an_error_of_a_reading_is_that_of_one_scrape(fresh: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = fresh.omni.counters

    def failing() -> Mapping[str, Mapping[str, int]]:
        monkeypatch.setattr(fresh.omni, "counters", counters)
        raise RuntimeError("of a plugin")

    monkeypatch.setattr(fresh.omni, "counters", failing)
    assert fresh.get("/metrics").status_code == 500
    assert read(fresh)["omni_engine_up", ()] == 1


def test_an_engine_without_an_answer_delays_nothing(fresh: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    release, asked = threading.Event(), []

    def stuck() -> Mapping[str, Mapping[str, int]]:
        asked.append(1)
        assert release.wait(30)
        return {}

    monkeypatch.setattr("omni.serve.metrics.stages._PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(fresh.omni, "counters", stuck)
    try:
        for count in (1, 2):
            found = read(fresh)
            assert found["omni_stages_unread_total", ()] == count
            assert not any(name.startswith("omni_stage_usage") for name, _ in found)
            assert fresh.post(CHAT, json=HELLO).status_code == 200
        assert len(asked) == 1
    finally:
        release.set()


def test_metrics_need_a_key_where_there_are_keys(echo_folder: Path) -> None:
    with served(echo_omni(echo_folder), api_keys=("one",)) as locked:
        assert locked.get("/metrics").status_code == 401
        assert locked.get("/metrics", authorization="Bearer one").status_code == 200


def test_counters_of_the_program_around_it_are_untouched(fresh: Served) -> None:
    """`_created` samples are left out of the server's metrics alone."""
    registry = CollectorRegistry()
    Counter("own", "Of the program.", registry=registry).inc()
    fresh.post(CHAT, json=HELLO)
    assert "_created" not in fresh.get("/metrics").text
    assert b"own_created" in generate_latest(registry)


def test_names_follow_the_conventions_of_prometheus(fresh: Served) -> None:
    fresh.post(CHAT, json=SPOKEN)
    for family in text_string_to_metric_families(fresh.get("/metrics").text):
        assert re.fullmatch(r"(omni|process)_[a-z_]+", family.name), family.name
        if family.name.startswith("omni") and family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
