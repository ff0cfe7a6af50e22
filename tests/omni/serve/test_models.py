"""Tiny models of real families through the OpenAI SDK: answers are those of the model itself."""

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from openai import OpenAI
from openai.types import CompletionUsage

from omni import AsyncOmni, Omni, SamplingParams
from omni.api import Metrics, Output, StageMetrics, Usage
from omni.serve.usage import token_usage
from omni_text.tiny import write_tiny
from tests.omni.serve.decoded import decoded
from tests.omni.serve.http_server import STRICT, Served, served
from tests.support.entry_points import REPOSITORY
from tests.support.patience import PATIENCE_SECONDS
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import SHAPE, tiny_plugins

pytestmark = pytest.mark.thorough

NAMES = ("tiny", "tiny-qwen3-omni")
PAGE = REPOSITORY / "docs" / "serving.md"


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(3, max_positions=192, **SHAPE)


@pytest.fixture(scope="module")
def talker(speaking: Path) -> Iterator[Served]:
    with served(AsyncOmni(speaking, device="cpu", plugins=tiny_plugins(), overrides=STRICT), model_names=NAMES) as it:
        yield it


@pytest.fixture(scope="module")
def writing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("writing")
    write_tiny(folder / "tiny", seed=1)
    return folder / "tiny"


@pytest.fixture(scope="module")
def writer(writing: Path) -> Iterator[Served]:
    with served(AsyncOmni(writing, device="cpu", plugins=tiny_plugins(), overrides=STRICT)) as it:
        yield it


def test_speech_over_http_is_that_of_the_model(talker: Served, speaking: Path, picture: str, sound: bytes) -> None:
    data = base64.b64encode(sound).decode()
    content: Any = [
        {"type": "image_url", "image_url": {"url": picture}},
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
        {"type": "text", "text": "What is this?"},
    ]
    messages: Any = [{"role": "user", "content": content}]
    with talker.client() as client:
        answer = client.chat.completions.create(
            model="tiny",
            messages=messages,
            modalities=["text", "audio"],
            audio={"voice": "alloy", "format": "pcm16"},
            max_completion_tokens=8,
            seed=1,
            extra_body={"sampling": {"talker": {"max_tokens": 9}}},
        )
    sampling = {"thinker": SamplingParams(max_tokens=8, seed=1), "talker": SamplingParams(max_tokens=9, seed=1)}
    with Omni(speaking, device="cpu", plugins=tiny_plugins()) as omni:
        expected = omni.generate(
            messages, modalities=("text", "audio"), voice=omni.voices[0], sampling=sampling, stream=False
        )
    audio = answer.choices[0].message.audio
    assert audio is not None
    assert expected.audio is not None
    assert (audio.transcript, answer.choices[0].finish_reason) == (expected.text, "length")
    samples = np.frombuffer(base64.b64decode(audio.data), "<i2")
    assert expected.sample_rate == 24000
    np.testing.assert_array_equal(samples, np.round(np.clip(expected.audio.numpy(), -1, 1) * 32767).astype(np.int16))
    usage = answer.usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.audio_tokens == expected.usage.tokens["talker"]
    assert usage.completion_tokens == sum(expected.usage.tokens.values())
    assert usage.prompt_tokens == expected.usage.prompt_tokens


def test_a_prompt_is_continued_without_the_chat_template(writer: Served, writing: Path) -> None:
    with writer.client() as client:
        answer = client.completions.create(model="tiny", prompt="once upon", max_tokens=6, seed=2, temperature=0.8)
    params = SamplingParams(max_tokens=6, seed=2, temperature=0.8)
    with Omni(writing, device="cpu", plugins=tiny_plugins()) as omni:
        raw = omni.generate("once upon", raw_prompt=True, sampling=params, stream=False)
        chat = omni.generate("once upon", sampling=params, stream=False)
    assert answer.choices[0].text == raw.text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == raw.usage.prompt_tokens < chat.usage.prompt_tokens


STORY = "once upon a time there was a fox who would not jump over anything " * 2


def found(usage: CompletionUsage | None) -> int:
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    cached = usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert 0 <= cached < usage.prompt_tokens
    return cached


def cached_in_all(server: Served) -> int:
    return server.omni.counters()["text"]["cached_tokens"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_usage_counts_tokens_of_the_prefix_cache(writer: Served, endpoint: str, stream: bool) -> None:
    def ask(client: OpenAI, prompts: list[str], **fields: Any) -> CompletionUsage | None:
        fields["extra_body"] = {"cache_salt": f"{endpoint} {stream}"}
        if stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        answer: Any
        if endpoint == "chat":
            messages: Any = [{"role": "user", "content": prompts[0]}]
            answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=2, **fields)
        else:
            answer = client.completions.create(model="tiny", prompt=prompts, max_tokens=2, **fields)
        usage: CompletionUsage | None = list(answer)[-1].usage if stream else answer.usage
        return usage

    with writer.client() as client:
        assert found(ask(client, [STORY], n=2)) == 0
        before = cached_in_all(writer)
        again = found(ask(client, [STORY]))
        assert again == cached_in_all(writer) - before > 0
        # The prompt counts once.
        assert found(ask(client, [STORY], n=3)) == again
        if endpoint == "completions":
            assert found(ask(client, [STORY, STORY, "Zounds"])) == 2 * again


def test_a_prompt_is_cached_as_far_as_all_its_answers_found_it(writer: Served) -> None:
    """A later answer finds the prompt of the first, which was not there before the request."""

    def finished(index: int, sample: int, cached: int) -> Output:
        stage = StageMetrics({"tokens": 3, "cached_tokens": cached}, 1.0)
        times = Metrics(
            queued=0, prepare=0, ttft=1, first_audio=None, total=1, audio_seconds=0, rtf=None, stages={"text": stage}
        )
        return Output(index, sample, finished=True, metrics=times, usage=Usage(40, {"text": 3}))

    outputs = [finished(0, 0, 0), finished(0, 1, 32), finished(1, 0, 32), finished(1, 1, 16)]
    usage = token_usage(outputs, writer.omni.pipeline)
    assert usage.prompt_tokens_details.cached_tokens == 16
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (80, 12, 92)


def test_prompts_are_refused_by_a_model_of_chats(talker: Served) -> None:
    response = talker.post("/v1/completions", json={"model": "tiny", "prompt": "once"})
    assert response.status_code == 400
    assert "use /v1/chat/completions" in response.json()["error"]["message"]


def test_a_schema_is_kept_to(writer: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    messages: Any = [{"role": "user", "content": "hello"}]
    with writer.client() as client:
        answer = client.chat.completions.create(
            model="tiny", messages=messages, response_format=wanted, max_tokens=100, seed=1
        )
    assert set(json.loads(answer.choices[0].message.content or "")) == {"a"}


def test_a_schema_that_is_none_is_named(writer: Served) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "response_format": wanted}
    for stream in (False, True):
        response = writer.post("/v1/chat/completions", json={**body, "stream": stream})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "response_format.json_schema.schema"


def test_the_page_is_true_as_it_is_shown(
    talker: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its listings, run one after the other as a user would."""
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    listings = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(listings) == 3
    for code in listings:
        assert names or "http://127.0.0.1:8000" in code
        exec(compile(code.replace("http://127.0.0.1:8000", talker.url), PAGE.name, "exec"), names)
    names["client"].close()
    samples, rate = soundfile.read(tmp_path / "answer.wav")
    assert (rate, len(samples) > 0, len(names["samples"]) > 0) == (24000, True, True)
    assert capsys.readouterr().out.startswith(f"{names['speech'].transcript}\n")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_commands_of_the_page_are_true(talker: Served, tmp_path: Path) -> None:
    """Each of its curl commands, as it is shown."""
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    commands = re.findall(r"^    (curl .*\n(?:     +.*\n)*)", PAGE.read_text(), re.MULTILINE)
    said = []
    for command in commands:
        assert "http://127.0.0.1:8000" in command
        line = command.replace("http://127.0.0.1:8000", talker.url).replace("curl", "curl -sS --fail", 1)
        done = subprocess.run(
            ["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
        )
        assert done.returncode == 0, (command, done.stderr)
        said.append(done.stdout)
    streamed, spoken, heard = said
    events = [line.removeprefix("data: ") for line in streamed.splitlines() if line]
    assert events[-1] == "[DONE]"
    assert "".join(json.loads(each)["choices"][0]["delta"].get("content", "") for each in events[:-1])
    assert spoken == ""
    assert len(decoded((tmp_path / "morning.mp3").read_bytes(), "mp3")[0]) > 0
    assert json.loads(heard)["text"]
