"""Chats through the OpenAI SDK, whole and streamed."""

from openai import OpenAI

HELLO = [{"role": "user", "content": "hello"}]


def test_a_text_is_answered(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HELLO)
    assert answer.choices[0].message.content == "hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 5, 10)
