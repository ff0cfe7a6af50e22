"""Speech of given texts through the OpenAI SDK."""

import asyncio
import base64
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import OpenAI

from omni.errors import ConfigError
from omni.serve import ServeOptions
from omni.serve.audio.av_encoder import AvEncoder
from omni.serve.audio.speech import MAX_CHARACTERS, SPEECH_FORMATS
from omni.serve.audio.voices import OPENAI_VOICES, Voices
from tests.omni.serve.decoded import decoded
from tests.omni.serve.http_server import Served, echo_omni, served
from tests.support.echo_family import BREAK, OPENED, RATE, SAMPLES, echo_model, eventually, pitch
from tests.support.patience import PATIENCE_SECONDS

TEXT = "the quick brown fox jumps over the lazy dog. " * 3
TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


def sung(text: str) -> np.ndarray:
    return np.repeat(np.array([pitch(c) for c in text], np.float32), SAMPLES)


def ask(echo: Served, **fields: object) -> httpx.Response:
    return echo.post("/v1/audio/speech", json={"model": "tiny", "input": "hello", "voice": "alloy", **fields})


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]


@pytest.mark.parametrize("format", SPEECH_FORMATS)
def test_the_text_is_spoken_in_each_format(client: OpenAI, format: Any) -> None:
    """And only the text, although the model gets it in a chat."""
    answer = client.audio.speech.create(model="tiny", voice="alloy", input=TEXT, response_format=format)
    assert answer.response.headers["content-type"].split(";")[0] == TYPES[format]
    assert "content-length" not in answer.response.headers
    samples, rate = decoded(answer.content, format)
    seconds = len(TEXT) * SAMPLES / RATE
    assert abs(len(samples) / rate - seconds) < (0.001 if format in ("flac", "wav", "pcm") else 0.6)
    if format in ("flac", "wav"):
        np.testing.assert_allclose(samples, sung(TEXT), atol=1.1 / 32767)


def test_mp3_is_the_default(echo: Served) -> None:
    assert ask(echo).headers["content-type"] == "audio/mpeg"


def test_speech_comes_in_pieces(client: OpenAI) -> None:
    with client.audio.speech.with_streaming_response.create(
        model="tiny", voice="alloy", input=TEXT, response_format="pcm"
    ) as response:
        assert response.headers["transfer-encoding"] == "chunked"
        pieces = list(response.iter_bytes())
    assert len(pieces) > 3
    assert len(b"".join(pieces)) == 2 * 3 * len(sung(TEXT))


@pytest.mark.parametrize("format", ["pcm", "mp3"])
def test_events_hold_the_same_file(echo: Served, format: str) -> None:
    *deltas, done = events(ask(echo, response_format=format, stream_format="sse"))
    assert {each["type"] for each in deltas} == {"speech.audio.delta"}
    assert {frozenset(each) for each in deltas} == {frozenset({"type", "audio"})}
    file = b"".join(base64.b64decode(each["audio"]) for each in deltas)
    assert file == ask(echo, response_format=format).content
    read = done["usage"]["input_tokens"]
    # The echo family counts no tokens of its singer.
    assert done == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": read, "output_tokens": 0, "total_tokens": read},
    }
    assert read > len("hello")


def test_the_async_client_is_served(echo: Served) -> None:
    async def main() -> tuple[bytes, bytes]:
        async with echo.async_client() as client:
            fields: Any = {"model": "tiny", "voice": {"id": "low"}, "input": TEXT, "response_format": "wav"}
            whole = await client.audio.speech.create(**fields)
            async with client.audio.speech.with_streaming_response.create(**fields) as response:
                return await whole.aread(), b"".join([piece async for piece in response.iter_bytes()])

    whole, streamed = asyncio.run(main())
    assert whole == streamed
    np.testing.assert_allclose(decoded(whole, "wav")[0], sung(TEXT), atol=1 / 32767)


def test_instructions_reach_the_model_and_are_not_spoken(echo: Served) -> None:
    plain: dict[str, str] = {}
    instructed = {"instructions": "Sound happy."}
    assert ask(echo, response_format="wav", **instructed).content == ask(echo, response_format="wav", **plain).content
    # The echo family reports the prompt's length only.
    read = [events(ask(echo, stream_format="sse", **each))[-1]["usage"]["input_tokens"] for each in (plain, instructed)]
    assert read[1] - read[0] == len("Sound happy.\n\n")


def test_a_seed_is_for_every_stage_and_no_token_is_drawn(echo: Served) -> None:
    ask(echo, seed=5)
    opened = OPENED[-1]
    assert (opened.sampling.seed, opened.sampling.temperature, opened.sampling.max_tokens) == (5, 0.0, 6)
    assert len(opened.rules.host_processors) == 1


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"speed": 1.5}, "speed", "use 1.0"),
        ({"response_format": "pcm16"}, "response_format", "use one of mp3, opus, aac, flac, wav, pcm"),
        ({"stream_format": "events"}, "stream_format", "Invalid enum value"),
        ({"input": "  "}, "input", "is empty"),
        ({"input": "x" * (MAX_CHARACTERS + 1)}, "input", "split it over several requests"),
        ({"voice": "loud"}, "voice", "unknown"),
        ({"voice": 3}, "voice", "str"),
        ({"max_tokens": 3}, "max_tokens", "the text to speak is given too"),
        ({"structured": {"choice": ["other"]}}, "structured", "the text to speak is given too"),
        ({"sampling": {"writer": {}}}, "sampling.writer", "beside sampling"),
        ({"lang": "en"}, "lang", "not known here"),
    ],
)
def test_a_wrong_field_is_named(echo: Served, fields: dict[str, Any], param: str, said: str) -> None:
    body = json.dumps({"model": "tiny", "input": "hello", "voice": "alloy", **fields})
    response = echo.post("/v1/audio/speech", content=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert said in error["message"]


def test_a_failure_before_the_first_sound_has_a_status(echo: Served) -> None:
    assert ask(echo, input=BREAK).status_code == 500
    assert ask(echo, input=BREAK, stream_format="sse").status_code == 500


def test_a_failure_within_the_sound_is_no_whole_file(echo: Served) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        ask(echo, input=TEXT + BREAK, response_format="pcm")
    last = events(ask(echo, input=TEXT + BREAK, response_format="pcm", stream_format="sse"))[-1]
    assert last["error"]["type"] == "server_error"


def test_a_model_without_speech_refuses(tmp_path: Path) -> None:
    with served(echo_omni(echo_model(tmp_path, speaks=False))) as silent:
        response = ask(silent)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "model")


CHAT = {"messages": [{"role": "user", "content": "hello"}], "modalities": ["text", "audio"]}
ENCODED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/audio/speech", {"input": "hello", "response_format": "mp3"}),
    ("/v1/audio/speech", {"input": "hello", "response_format": "mp3", "stream_format": "sse"}),
    ("/v1/chat/completions", {**CHAT, "audio": {"format": "mp3"}, "stream": True}),
    ("/v1/chat/completions", {**CHAT, "audio": {"format": "mp3"}}),
)
"""Requests whose answers are encoded."""


@pytest.mark.parametrize(("path", "fields"), ENCODED, ids=["speech", "speech events", "chat events", "chat"])
def test_encoding_leaves_the_event_loop_free(echo: Served, path: str, fields: dict[str, Any]) -> None:
    """While the processes of encoders stand still, another request is answered."""
    body = {"model": "tiny", **fields}
    expected = echo.post(path, json=body)
    pids = [process.pid for process in echo.server.encoders.processes if process.pid is not None]
    assert pids
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(echo.post(path, json=body)))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        thread.start()
        assert eventually(lambda: any(process.files for process in echo.server.encoders.processes))
        assert echo.get("/health").status_code == 200
        assert not answers
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        thread.join()
    assert answers[0].status_code == 200
    if fields.get("response_format") and "stream_format" not in fields:
        assert answers[0].content == expected.content


@pytest.mark.parametrize(("path", "fields"), ENCODED, ids=["speech", "speech events", "chat events", "chat"])
def test_encoding_in_threads_leaves_the_event_loop_free(
    echo_folder: Path, path: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an encoder works, another request is answered: it ends only then."""
    started, answered = threading.Event(), threading.Event()
    push = AvEncoder.push

    def slow(self: AvEncoder, samples: Any) -> bytes:
        started.set()
        assert answered.wait(PATIENCE_SECONDS)
        return push(self, samples)

    monkeypatch.setattr(AvEncoder, "push", slow)
    codes: list[int] = []
    with served(echo_omni(echo_folder), encoder_processes=0) as threads:
        body = {"model": "tiny", **fields}
        thread = threading.Thread(target=lambda: codes.append(threads.post(path, json=body).status_code))
        thread.start()
        try:
            assert started.wait(PATIENCE_SECONDS)
            assert threads.get("/health").status_code == 200
        finally:
            answered.set()
            thread.join()
    assert codes == [200]


def test_a_client_that_goes_away_ends_its_speech(echo: Served) -> None:
    with echo.client() as client:
        manager = client.audio.speech.with_streaming_response.create(
            model="tiny", voice="alloy", input=TEXT * 30, response_format="mp3"
        )
        response = manager.__enter__()
        next(response.iter_bytes())
        response.close()
        assert eventually(lambda: echo.server.limits.in_flight == 0)
    echo.assert_nothing_held()


def test_voices_are_listed(echo: Served) -> None:
    expected = {"voices": [{"id": "low", "name": "low"}, {"id": "high", "name": "high"}]}
    assert echo.get("/v1/audio/voices").json() == echo.get("/audio/voices").json() == expected


def test_names_of_openai_stand_for_the_voices_in_turn() -> None:
    voices = Voices(("a", "B", "coral"), {})
    assert [voices.find(name) for name in OPENAI_VOICES[:5]] == ["a", "B", "coral", "coral", "B"]
    assert [voices.find(name) for name in (None, "A", "b", "Coral", "other")] == [None, "a", "B", "coral", "other"]
    assert len(set(OPENAI_VOICES)) == 13


def test_a_table_names_voices(echo_folder: Path) -> None:
    voices = Voices(("low", "High"), {"alloy": "hIGH", "Aria": "low"})
    assert (voices.find("Alloy"), voices.find("aria"), voices.find("echo")) == ("High", "low", "low")
    assert voices.names == ("low", "High", "alloy", "Aria")
    with pytest.raises(ConfigError, match="use one of low, high"):
        Voices(("low", "high"), {"alloy": "loud"})
    with served(echo_omni(echo_folder), voices={"aria": "high"}) as it:
        assert it.get("/v1/audio/voices").json()["voices"][-1] == {"id": "aria", "name": "aria"}
        # The page offers the same.
        assert it.get("/v1/omni/pipeline").json()["voices"] == ["low", "high", "aria"]
        assert ask(it, voice="aria").status_code == 200
    assert ServeOptions().voices == {}


def test_a_model_of_one_voice_takes_the_names_of_openai() -> None:
    voices = Voices((), {})
    assert [voices.find(name) for name in (*OPENAI_VOICES, None)] == [None] * 14
    assert voices.find("other") == "other"
