"""Chats through the OpenAI SDK, whole and streamed."""

import base64
import io
import json
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsStreaming as CompletionParams
from pydantic import BaseModel

from omni.sampling import SamplingParams
from omni.serve.chat.request import ChatRequest
from omni.serve.completions import CompletionRequest
from omni.serve.unsupported import IGNORED, OFF
from tests.omni.serve.http_server import Served
from tests.support.echo_family import OPENED, RATE, SAMPLE, SAMPLES, pitch

HELLO = [{"role": "user", "content": "hello"}]
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}


def strict(kind: type[BaseModel], body: object) -> None:
    """The SDK's type takes it without conversion, and has every field."""
    kind.model_validate(body, strict=True)
    checked = kind.model_validate(body)
    unknown = _extras(checked)
    assert not unknown, unknown


def _extras(value: object) -> list[str]:
    if isinstance(value, list):
        return [name for each in value for name in _extras(each)]
    if not isinstance(value, BaseModel):
        return []
    own = [f"{type(value).__name__}.{name}" for name in (value.model_extra or {})]
    return own + [name for field in type(value).model_fields for name in _extras(getattr(value, field))]


def ask(echo: Served, **fields: object) -> httpx.Response:
    return echo.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO, **fields})


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize(
    "refused",
    [{"content": [{"type": "refusal", "refusal": "no"}]}, {"content": None, "refusal": "no"}, {"refusal": "no"}],
)
def test_a_refusal_counts_as_the_assistants_text(client: Any, refused: dict[str, Any]) -> None:
    messages = [*HELLO, {"role": "assistant", **refused}, {"role": "user", "content": "why"}]
    answer = client.chat.completions.create(model="tiny", messages=messages)
    assert answer.choices[0].message.content == "hello|no|why"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "content": "yes", "refusal": "no"}, "messages[0].refusal"),
        ({"role": "user", "content": None, "refusal": "no"}, "messages[0].refusal"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}, "messages[0].content[0].type"),
    ],
)
def test_a_refusal_elsewhere_is_refused(echo: Served, message: dict[str, Any], param: str) -> None:
    response = ask(echo, messages=[message])
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_a_text_is_answered(client: Any) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HELLO)
    assert answer.choices[0].message.content == "hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 5, 10)


def test_a_text_is_streamed(client: Any) -> None:
    with client.chat.completions.create(
        model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}, max_tokens=7
    ) as stream:
        got = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in got if chunk.choices) == "hellohe"
    assert [chunk.choices[0].finish_reason for chunk in got if chunk.choices][-1] == "length"
    assert len({chunk.id for chunk in got}) == 1
    assert got[-1].usage is not None
    assert got[-1].usage.completion_tokens == 7
    assert len(got) > 4


def test_each_whole_answer_keeps_to_the_types_of_the_sdk(echo: Served) -> None:
    for fields in ({}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}, SPOKEN):
        strict(ChatCompletion, ask(echo, **fields).json())


def test_each_chunk_keeps_to_the_types_of_the_sdk(echo: Served) -> None:
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    for fields in ({}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}, SPOKEN):
        got = chunks(ask(echo, **streamed, **fields))
        assert len(got) > 1
        for chunk in got:
            strict(ChatCompletionChunk, chunk)


def test_speech_is_a_wav_with_its_transcript(client: Any) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HELLO, **SPOKEN)
    message = answer.choices[0].message
    assert message.content is None
    assert message.audio is not None
    assert message.audio.transcript == "hello"
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(message.audio.data)), dtype="float32")
    assert rate == RATE
    expected = np.repeat(np.array([pitch(c) for c in "hello"], np.float32), SAMPLES)
    np.testing.assert_allclose(samples, expected, atol=1 / 32767)


@pytest.mark.parametrize("format", ["pcm16", "wav"])
def test_streamed_speech_is_joined_by_the_sdk(client: Any, echo: Served, format: str) -> None:
    asked = {"modalities": ["text", "audio"], "audio": {"voice": "low", "format": format}}
    with client.chat.completions.stream(model="tiny", messages=HELLO, **asked) as stream:
        for _ in stream:
            pass
        audio = stream.get_final_completion().choices[0].message.audio
    assert audio is not None
    whole = client.chat.completions.create(model="tiny", messages=HELLO, **asked).choices[0].message.audio
    assert whole is not None
    skipped = 44 if format == "wav" else 0
    joined, expected = base64.b64decode(audio.data, validate=True), base64.b64decode(whole.data)
    assert joined[skipped:] == expected[skipped:]
    assert len(joined) - skipped == 2 * 5 * SAMPLES * (3 if format == "pcm16" else 1)
    assert audio.transcript == "hello"
    assert audio.id.startswith("audio_")
    assert abs(audio.expires_at - whole.expires_at) <= 5


def test_ids_come_once_and_slices_hold_whole_bytes(echo: Served) -> None:
    sent = [c["choices"][0]["delta"].get("audio") for c in chunks(ask(echo, stream=True, **SPOKEN))]
    audio = [each for each in sent if each is not None]
    assert sum("id" in each for each in audio) == sum("expires_at" in each for each in audio) == 1
    assert set(audio[-1]) == {"expires_at"}
    assert "id" in audio[0]
    data = [each["data"] for each in audio if "data" in each]
    assert len(data) > 2
    assert all(len(base64.b64decode(each)) % 3 == 0 for each in data[:-1])


def test_an_earlier_answer_is_named_by_its_audio(client: Any) -> None:
    first = client.chat.completions.create(model="tiny", messages=HELLO, **SPOKEN).choices[0].message
    assert first.audio is not None
    said = {"role": "assistant", "audio": {"id": first.audio.id}}
    answer = client.chat.completions.create(model="tiny", messages=[*HELLO, said, {"role": "user", "content": "x"}])
    assert answer.choices[0].message.content == "hello|hello|x"


@pytest.mark.parametrize("asked", [{}, SPOKEN], ids=["text", "speech"])
@pytest.mark.parametrize("way", ["create", "parse", "stream"])
def test_a_message_of_the_sdk_can_be_sent_back(client: Any, way: str, asked: dict[str, Any]) -> None:
    """`parse` and `stream` add `parsed` to it."""
    if way == "stream":
        with client.chat.completions.stream(model="tiny", messages=HELLO, **asked) as stream:
            message = stream.get_final_completion().choices[0].message
    else:
        message = getattr(client.chat.completions, way)(model="tiny", messages=HELLO, **asked).choices[0].message
    for back in (message, message.model_dump()):
        answer = client.chat.completions.create(model="tiny", messages=[*HELLO, back])
        assert answer.choices[0].message.content == "hello|hello"


def test_a_parsed_answer_can_be_sent_back(echo: Served) -> None:
    back = {"role": "assistant", "content": '{"a":1}', "parsed": {"a": 1}}
    answer = echo.post("/v1/chat/completions", json={"model": "tiny", "messages": [*HELLO, back]})
    assert answer.json()["choices"][0]["message"]["content"] == 'hello|{"a":1}'


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_speech_alone_has_its_transcript_too(client: Any, echo: Served, stream: bool) -> None:
    asked = {**SPOKEN, "modalities": ["audio"]}
    if stream:
        sent = [c["choices"][0]["delta"].get("audio") or {} for c in chunks(ask(echo, stream=True, **asked))]
        assert "".join(each.get("transcript", "") for each in sent) == "hello"
        audio_id = next(each["id"] for each in sent if "id" in each)
    else:
        audio = client.chat.completions.create(model="tiny", messages=HELLO, **asked).choices[0].message.audio
        assert audio.transcript == "hello"
        audio_id = audio.id
    said = {"role": "assistant", "audio": {"id": audio_id}}
    answer = client.chat.completions.create(model="tiny", messages=[*HELLO, said])
    assert answer.choices[0].message.content == "hello|hello"


def test_pictures_and_sound_are_read_from_data(client: Any, picture: str, sound: bytes) -> None:
    data = base64.b64encode(sound).decode()
    parts = [
        {"type": "image_url", "image_url": {"url": picture, "detail": "high"}},
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{data}"}},
        {"type": "text", "text": "x"},
    ]
    messages = [{"role": "developer", "content": "be kind"}, {"role": "user", "content": parts}]
    answer = client.chat.completions.create(model="tiny", messages=messages)
    assert answer.choices[0].message.content == "be kind|<6x4>|<1600 samples>|<1600 samples>|x"


def test_several_answers_have_their_index(client: Any) -> None:
    messages = [{"role": "user", "content": f"a{SAMPLE}b"}]
    whole = client.chat.completions.create(model="tiny", messages=messages, n=3)
    assert [(c.index, c.message.content) for c in whole.choices] == [(0, "a0b"), (1, "a1b"), (2, "a2b")]
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 9)
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(model="tiny", messages=messages, n=3, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == ["a0b", "a1b", "a2b"]


def test_log_probabilities_are_of_tokens_as_text(client: Any) -> None:
    asked = {"model": "tiny", "messages": HELLO, "logprobs": True, "top_logprobs": 2}
    content = client.chat.completions.create(**asked).choices[0].logprobs.content
    assert [(each.token, each.logprob, each.bytes) for each in content] == [
        (letter, -index, [ord(letter)]) for index, letter in enumerate("hello")
    ]
    assert [(top.token, top.logprob) for top in content[0].top_logprobs] == [("\x00", 0), ("\x01", -1)]
    streamed = [
        each
        for chunk in client.chat.completions.create(**asked, stream=True)
        if chunk.choices[0].logprobs
        for each in chunk.choices[0].logprobs.content
    ]
    assert streamed == content


def test_every_sampling_field_reaches_its_stage(client: Any) -> None:
    extra = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 1, "sampling": {"singer": {"seed": 4}}}
    client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        temperature=0.5,
        top_p=0.9,
        seed=3,
        logit_bias={"5": -3},
        presence_penalty=0.2,
        frequency_penalty=0.3,
        max_completion_tokens=4,
        extra_body=extra,
    )
    given = OPENED[-1].sampling
    assert (given.temperature, given.top_p, given.seed, given.max_tokens) == (0.5, 0.9, 3, 4)
    assert (given.top_k, given.min_p, given.repetition_penalty, given.min_tokens) == (5, 0.1, 1.1, 1)
    assert (given.logit_bias, given.presence_penalty, given.frequency_penalty) == ({5: -3}, 0.2, 0.3)


def test_a_stop_string_ends_the_text(client: Any) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HELLO, stop="lo")
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("hel", "stop")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": -1}, "temperature", "out of range"),
        ({"temperature": "hot"}, "temperature", "Expected `float"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "out of range"),
        ({"max_tokens": 0}, "max_tokens", "out of range"),
        ({"colour": 1}, "colour", "not known here"),
        ({"audio": {"voice": "low", "speed": 2}}, "audio.speed", "not known here"),
        ({"modalities": ["audio"], "audio": {"voice": "loud"}}, "audio.voice", "unknown"),
        ({"modalities": ["audio"], "audio": {"format": "midi"}}, "audio.format", "use one of wav"),
        ({"modalities": ["video"]}, "modalities[0]", "not given here"),
        ({"modalities": []}, "modalities", 'name "text", "audio" or both'),
        ({"moderation": {"model": "x"}}, "moderation", "not supported"),
        ({"model": "gpt-4o"}, "model", "not served here"),
        ({"messages": []}, "messages", "empty"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "unknown"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages", "hold no text"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "missing"),
        ({"tools": [{"type": "function"}]}, "tools", "not supported"),
        ({"n": 65}, "n", "out of range"),
        ({"top_logprobs": 3}, "top_logprobs", "without logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "out of range"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "Invalid enum value"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "missing"),
        ({"sampling": {"writer": {}}}, "sampling.writer", "beside sampling"),
        ({"sampling": {"nobody": {}}}, "sampling.nobody", "not a stage"),
        ({"stop_token_ids": [5000]}, "stop_token_ids", "not a letter"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "without stream"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens", "differs"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_field_is_named(echo: Served, fields: dict[str, Any], param: str, words: str, stream: bool) -> None:
    if stream and "stream_options" in fields:
        return
    response = ask(echo, **fields, **({"stream": True} if stream else {}))
    assert response.status_code == (404 if param == "model" else 400), response.text
    error = response.json()["error"]
    assert (error["param"], error["type"]) == (
        param,
        "not_found_error" if param == "model" else "invalid_request_error",
    )
    assert words in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_a_damaged_sound_is_named(echo: Served) -> None:
    """A header of an mp3 without data."""
    data = base64.b64encode(b"\xff\xfb\x90\x00" + bytes(4000)).decode()
    content = [{"type": "text", "text": "a"}, {"type": "input_audio", "input_audio": {"data": data, "format": "mp3"}}]
    response = ask(echo, messages=[{"role": "user", "content": content}])
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages[0].content[1].input_audio")
    assert "sound file" in error["message"]
    assert "; " in error["message"]
    assert not any(word in error["message"] for word in ("exist", "pipe", "nternal"))


def test_every_field_of_the_sdk_is_known() -> None:
    """It is taken, has no effect, or is refused as not supported: a newer version of the SDK may have more."""
    for kind, request in ((ChatParams, ChatRequest), (CompletionParams, CompletionRequest)):
        known = {*request.__struct_fields__, *SamplingParams.__struct_fields__, *IGNORED, *OFF}
        assert kind.__annotations__.keys() - known == set()


def test_fields_without_effect_are_taken(echo: Served) -> None:
    harmless = {"user": "me", "metadata": {"a": "b"}, "tools": [], "tool_choice": "auto", "store": False}
    assert ask(echo, **harmless).status_code == 200


def test_no_field_means_two_things() -> None:
    names = set(ChatRequest.__struct_fields__)
    assert not names & (IGNORED | OFF.keys())
    assert not set(SamplingParams.__struct_fields__) & (IGNORED | OFF.keys())
    assert names & set(SamplingParams.__struct_fields__) == {"logprobs"}


def test_a_participant_has_a_name_without_an_effect(echo: Served) -> None:
    """The model does not distinguish speakers."""
    messages: Any = [
        {"role": "system", "name": "rules", "content": "a"},
        {"role": "user", "name": "Ann", "content": "b"},
    ]
    with echo.client() as client:
        answer = client.chat.completions.create(model="tiny", messages=messages)
    assert answer.choices[0].message.content == "a|b"
