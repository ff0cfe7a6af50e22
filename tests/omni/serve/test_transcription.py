"""Transcripts of files through the OpenAI SDK. The echo family writes its input: the sound's length, and the request."""

import asyncio
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from openai import OpenAI
from openai.types.audio import (
    Transcription,
    TranscriptionTextDeltaEvent,
    TranscriptionTextDoneEvent,
    TranscriptionVerbose,
)

from omni.serve.audio import upload
from tests.omni.serve.http_server import Served, echo_omni, served
from tests.omni.serve.test_chat import strict
from tests.support.echo_family import OPENED
from tests.support.patience import PATIENCE_SECONDS

HEARD = "<1600 samples>|Transcribe the speech."


def ask(echo: Served, sound: bytes | None, **fields: Any) -> httpx.Response:
    files = {} if sound is None else {"file": ("speech.wav", sound, "audio/wav")}
    return echo.post("/v1/audio/transcriptions", data={"model": "tiny", **fields}, files=files or {"other": b"x"})


def test_a_file_is_heard(client: OpenAI, sound: bytes) -> None:
    answer = client.audio.transcriptions.create(model="tiny", file=("speech.wav", sound))
    assert isinstance(answer, Transcription)
    assert answer.text.startswith(HEARD)
    assert answer.usage is not None
    assert answer.usage.type == "tokens"
    assert answer.usage.output_tokens == len(answer.text)
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert OPENED[-1].sampling.temperature == 0


def test_each_answer_keeps_to_the_types_of_the_sdk(echo: Served, sound: bytes) -> None:
    strict(Transcription, ask(echo, sound).json())
    verbose = ask(echo, sound, response_format="verbose_json", language="en").json()
    assert (verbose.pop("task"), verbose["language"]) == ("transcribe", "en")
    strict(TranscriptionVerbose, verbose)
    assert verbose["duration"] == verbose["usage"]["seconds"] == 0.1


def test_format_text_is_the_transcript_alone(client: OpenAI, sound: bytes) -> None:
    answer: Any = client.audio.transcriptions.create(model="tiny", file=("speech.wav", sound), response_format="text")
    assert answer.startswith(HEARD)


def test_language_prompt_and_sampling_reach_the_model(client: OpenAI, sound: bytes) -> None:
    answer = client.audio.transcriptions.create(
        model="tiny",
        file=("speech.wav", sound),
        language="en",
        prompt="Names: Ada.",
        temperature=0.5,
        extra_body={"seed": 3, "max_tokens": 500},
    )
    assert "The language is 'en'." in answer.text
    assert "Names: Ada." in answer.text
    params = OPENED[-1].sampling
    assert (params.temperature, params.seed, params.max_tokens) == (0.5, 3, 500)


def test_a_transcript_is_streamed(client: OpenAI, sound: bytes) -> None:
    with client.audio.transcriptions.create(model="tiny", file=("speech.wav", sound), stream=True) as stream:
        *deltas, done = list(stream)
    assert isinstance(done, TranscriptionTextDoneEvent)
    assert all(isinstance(each, TranscriptionTextDeltaEvent) for each in deltas)
    assert len(deltas) > 3
    assert "".join(each.delta for each in deltas) == done.text  # type: ignore[union-attr]
    assert done.text.startswith(HEARD)
    for each in (*deltas, done):
        strict(type(each), each.model_dump(exclude_unset=True))


def test_the_async_client_is_heard(echo: Served, sound: bytes) -> None:
    async def main() -> tuple[str, str]:
        async with echo.async_client() as client:
            file = ("speech.wav", sound)
            whole = await client.audio.transcriptions.create(model="tiny", file=file)
            stream = await client.audio.transcriptions.create(model="tiny", file=file, stream=True)
            last: Any = [each async for each in stream][-1]
            return whole.text, last.text

    whole, streamed = asyncio.run(main())
    assert whole == streamed
    assert whole.startswith(HEARD)


@pytest.mark.parametrize("format", ["FLAC", "OGG", "MP3"])
def test_compressed_files_are_heard(echo: Served, format: str) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(16000) / 8).astype(np.float32) / 2, 16000, format=format)
    answer = ask(echo, file.getvalue(), response_format="verbose_json").json()
    assert answer["text"].startswith("<16000 samples>")
    assert answer["duration"] == 1.0


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"response_format": "srt"}, "response_format", "use one of json, text, verbose_json"),
        ({"temperature": "-1"}, "temperature", "out of range"),
        ({"temperature": "warm"}, "temperature", "float"),
        ({"timestamp_granularities[]": ["word", "segment"]}, "timestamp_granularities[]", "no timestamps"),
        ({"include[]": "logprobs"}, "include[]", "no log-probabilities"),
        ({"stream": "perhaps"}, "stream", "bool"),
    ],
)
def test_a_wrong_field_is_named(echo: Served, sound: bytes, fields: dict[str, Any], param: str, said: str) -> None:
    response = ask(echo, sound, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert said in response.json()["error"]["message"]


@pytest.mark.parametrize("file", [None, b"", b"no sound at all"])
@pytest.mark.parametrize("stream", ["false", "true"])
def test_a_file_without_sound_is_refused(echo: Served, file: bytes | None, stream: str) -> None:
    response = ask(echo, file, stream=stream)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "file")


def test_a_body_that_is_no_form_is_refused(echo: Served) -> None:
    assert echo.post("/v1/audio/transcriptions", json={"model": "tiny"}).status_code == 415
    broken = echo.post(
        "/v1/audio/transcriptions", content=b"--x\r\nbad", headers={"content-type": "multipart/form-data; boundary=x"}
    )
    assert broken.status_code == 400
    echo.assert_nothing_held()


FILE = b'content-disposition: form-data; name="file"; filename="x.wav"'


@pytest.mark.parametrize(
    ("parts", "param", "said"),
    [
        ([b'content-disposition: form-data; name="model"\r\n\r\ntiny'], "file", "is missing"),
        ([FILE + b"\r\n\r\nRIFF"] * 2, "file", "is given twice"),
        ([b"content-type: audio/wav\r\n\r\nRIFF"], "body", "a part has no name"),
        ([b'content-disposition: form-data; name="a"\r\n\r\nb'] * 66, "body", "more than 65 parts"),
        ([b'content-disposition: form-data; name="a"\r\n\r\n' + b"b" * 65_537], "body", "a has more than 65,536 bytes"),
        ([FILE + b"\r\n\r\nRIFF", None], "body", "ends within a part"),
    ],
)
def test_errors_of_a_multipart_form_name_the_problem(
    echo: Served, parts: list[bytes | None], param: str, said: str
) -> None:
    """None: the end is missing."""
    body = b"".join(b"--x\r\n" + part + b"\r\n" for part in parts if part is not None)
    response = echo.post(
        "/v1/audio/transcriptions",
        content=body if None in parts else body + b"--x--\r\n",
        headers={"content-type": "multipart/form-data; boundary=x"},
    )
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text
    assert said in response.json()["error"]["message"]


def test_a_path_in_place_of_a_file_is_not_opened(echo: Served) -> None:
    response = echo.post(
        "/v1/audio/transcriptions", data={"model": "tiny", "file": "/etc/hostname"}, files={"other": b"x"}
    )
    assert (response.status_code, response.json()["error"]["param"]) == (400, "file")


@pytest.fixture(scope="module")
def small(echo_folder: Path) -> Iterator[Served]:
    with served(echo_omni(echo_folder), max_upload_bytes=2000, max_body_bytes=5000) as it:
        yield it


@pytest.mark.parametrize(("length", "code"), [(2001, "file_too_large"), (5001, "body_too_large")])
def test_a_file_beyond_the_limits_is_refused(small: Served, length: int, code: str) -> None:
    response = ask(small, bytes(length))
    assert (response.status_code, response.json()["error"]["code"]) == (413, code)
    small.assert_nothing_held()


def test_a_model_that_writes_nothing_refuses(echo: Served, sound: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(echo.omni.pipeline), "text_stage", None)
    response = ask(echo, sound)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "model")


def test_reading_a_form_leaves_the_event_loop_free(echo: Served, sound: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is read, another request is answered: the reading ends only then."""
    started, answered = threading.Event(), threading.Event()
    read = upload._parts

    def slow(body: bytes, boundary: bytes) -> Any:
        started.set()
        assert answered.wait(PATIENCE_SECONDS)
        return read(body, boundary)

    monkeypatch.setattr(upload, "_parts", slow)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(ask(echo, sound).status_code))
    thread.start()
    try:
        assert started.wait(PATIENCE_SECONDS)
        assert httpx.get(f"{echo.url}/health", timeout=10).status_code == 200
    finally:
        answered.set()
        thread.join(PATIENCE_SECONDS)
    assert codes == [200]
