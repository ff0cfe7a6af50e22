"""Text of text, pictures and sound through the public interface, against transformers' `generate`, in one batch."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import Qwen2Tokenizer

from omni import Omni, SamplingParams
from tests.support.tiny_omni import assert_freed, picture, sound, tiny_plugins, user
from tests.support.tiny_qwen2_5_omni import as_transformers, reference_model, tiny_folder

TOKENS = 12
CHATS: list[list[dict[str, Any]]] = [
    user("what do you see"),
    user(picture(1), "what is this picture"),
    user(sound(2), "who said that"),
    user(picture(3, 60, 100), sound(4, 1.3), picture(5), "and now"),
]


@pytest.fixture(scope="module")
def omni() -> Iterator[Omni]:
    with Omni(tiny_folder(stop_gain=0.0), device="cpu", plugins=tiny_plugins()) as omni:
        yield omni
        assert_freed(omni)


@torch.no_grad()
def expected(messages: list[dict[str, Any]]) -> list[int]:
    """transformers' own greedy tokens, for the same ids and features."""
    folder = tiny_folder(stop_gain=0.0)
    ids_T, media = as_transformers(folder, messages)
    mask = torch.ones_like(ids_T)[None]
    made = reference_model(folder).thinker.generate(
        input_ids=ids_T[None], attention_mask=mask, max_new_tokens=TOKENS, do_sample=False, **media
    )
    tokens: list[int] = made[0, len(ids_T) :].tolist()
    return tokens


def test_texts_are_transformers(omni: Omni) -> None:
    asked = {"thinker": SamplingParams(max_tokens=TOKENS)}
    streams = [omni.generate(chat, sampling=asked, modalities=("text",)) for chat in CHATS]
    tokenizer = Qwen2Tokenizer.from_pretrained(tiny_folder(stop_gain=0.0))
    texts = ["".join(output.text for output in stream) for stream in streams]
    assert texts == [tokenizer.decode(expected(chat), skip_special_tokens=True) for chat in CHATS]
    assert len(set(texts)) == len(texts)
