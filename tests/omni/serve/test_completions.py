"""Completions of prompts through the OpenAI SDK."""

from typing import Any

import pytest
from openai import BadRequestError
from openai.types import Completion

from tests.omni.serve.http_server import Served
from tests.omni.serve.test_chat import chunks, strict


def ask(echo: Served, **fields: object) -> dict[str, Any]:
    response = echo.post("/v1/completions", json={"model": "tiny", "prompt": "hello", **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_a_prompt_is_completed(client: Any) -> None:
    answer = client.completions.create(model="tiny", prompt="hello", max_tokens=7)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("hellohe", "length")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 7)


def test_sixteen_tokens_are_the_default(client: Any) -> None:
    assert len(client.completions.create(model="tiny", prompt="hello").choices[0].text) == 16


def test_several_prompts_have_their_choices_in_order(client: Any) -> None:
    answer = client.completions.create(model="tiny", prompt=["ab", "c"], n=2, max_tokens=2)
    assert [(c.index, c.text) for c in answer.choices] == [(0, "ab"), (1, "ab"), (2, "cc"), (3, "cc")]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 8)


def test_a_completion_is_streamed(client: Any) -> None:
    stream = client.completions.create(model="tiny", prompt=["ab", "c"], max_tokens=4, stream=True)
    texts, reasons = {0: "", 1: ""}, []
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
        reasons += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    assert (texts, reasons) == ({0: "abab", 1: "cccc"}, ["length", "length"])


def test_answers_keep_to_the_types_of_the_sdk(echo: Served) -> None:
    for fields in ({}, {"n": 2}, {"logprobs": 2}):
        strict(Completion, ask(echo, **fields))
        streamed = {"stream": True, "stream_options": {"include_usage": True}, "model": "tiny", "prompt": "hello"}
        for chunk in chunks(echo.post("/v1/completions", json={**streamed, **fields})):
            # The SDK has one type for both; in a piece no reason is there yet.
            if chunk["choices"] and chunk["choices"][0]["finish_reason"] is None:
                chunk["choices"][0]["finish_reason"] = "stop"
            strict(Completion, chunk)


def test_log_probabilities_have_offsets_in_the_text(client: Any) -> None:
    logprobs = client.completions.create(model="tiny", prompt="hello", max_tokens=3, logprobs=1).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["h", "e", "l"]
    assert logprobs.token_logprobs == [0, -1, -2]
    assert logprobs.text_offset == [0, 1, 2]
    assert logprobs.top_logprobs == [{"\x00": 0.0}] * 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"messages": []}, "messages"),
        ({"prompt": ["a"] * 33, "n": 64}, "prompt"),
    ],
)
def test_unsupported_fields_are_refused_by_name(client: Any, fields: dict[str, Any], param: str) -> None:
    asked = {"prompt": "hello", **fields}
    with pytest.raises(BadRequestError) as error:
        client.completions.create(model="tiny", prompt=asked.pop("prompt"), extra_body=asked)
    assert error.value.param == param
