"""A bad request: its error, and no effect on the request beside it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni import InputError, Omni, SamplingParams
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import SHAPE, Bystander, assert_freed, lengths, picture, tiny_plugins, user

AUDIO, IMAGE = "messages[0].content[0].input_audio", "messages[0].content[0].image_url"


@pytest.fixture(scope="module")
def omni() -> Iterator[Omni]:
    with Omni(tiny_checkpoint(3, **SHAPE), device="cpu", plugins=tiny_plugins()) as omni:
        yield omni


@pytest.fixture(scope="module")
def bystander(omni: Omni) -> Bystander:
    return Bystander.of(omni)


def image(source: object) -> dict[str, Any]:
    return {"type": "image_url", "image_url": source}


def audio(source: object) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": source}


SOUNDS: dict[str, tuple[Callable[[Path], dict[str, Any]], str, str]] = {
    "no array": (lambda _: audio(np.zeros(0, np.float32)), AUDIO, "is empty (0 samples); give at least"),
    "no such file": (lambda f: audio(str(f / "none.wav")), AUDIO, "give the path of an existing file"),
    "no numbers": (lambda _: audio(np.full(9999, np.nan, np.float32)), AUDIO, "give finite samples"),
}
PICTURES: dict[str, tuple[Callable[[Path], dict[str, Any]], str, str]] = {
    "no picture": (lambda _: image(b"no picture"), IMAGE, "give a PNG, JPEG"),
    "no such file": (lambda f: image(str(f / "none.png")), IMAGE, "give the path of an existing file"),
    "a ribbon": (lambda _: image(np.zeros((2, 999, 3), np.uint8)), IMAGE, "999 x 2 pixels, more than 200 times"),
}
CHATS: dict[str, tuple[Any, dict[str, Any], str, str]] = {
    "an empty prompt": ("", {}, "messages", "hold no text, sound or picture; give the model something to answer"),
    "white space": (user(" \n"), {}, "messages", "give the model something to answer"),
    "no messages": ([], {}, "messages", "are empty; give at least one message"),
    "a prompt that is too long": (
        "the " * 5000,
        {},
        "prompt",
        "has 5011 tokens, and thinker takes 1024 with at least one generated; shorten it, or raise thinker.max_model_len",
    ),
    "texts that no prompt is long enough for": (
        [{"role": "system", "content": "the " * 100_000}, *user("a" * 100_000, picture(), "b" * 500_000)],
        {},
        "messages",
        "hold 1,000,000 bytes of text, and thinker takes 1024 tokens, at least one of them generated, of at most 21 bytes each; "
        "shorten them, or raise thinker.max_model_len",
    ),
    "a talker's prompt that is too long": (
        "the " * 1008,
        {"sampling": lengths(3, 3)},
        "prompt",
        "has 1025 tokens, and talker takes 1024 with at least one generated; shorten it, or raise talker.max_model_len",
    ),
    "an unknown voice": ("hi", {"voice": "bob"}, "voice", "'bob' is unknown; use one of ethan, chelsie, aiden"),
    "a video": (
        user({"type": "video_url", "video_url": {"url": "a.mp4"}}),
        {},
        "messages[0].content[0].type",
        "video input is not supported; give single pictures as image_url parts and the sound as an input_audio part",
    ),
    "too many stops": (
        "hi",
        {"sampling": SamplingParams(stop_token_ids=tuple(range(17)))},
        "sampling.stop_token_ids",
        "use at most 16 in all",
    ),
    "codes of a stage without frames": (
        "hi",
        {"sampling": SamplingParams(code_top_k=3)},
        "sampling.code_top_k",
        "is given, and a token of thinker begins no frame of codes; leave it out",
    ),
    "a stop that is not a token": (
        "hi",
        {"sampling": {"talker": SamplingParams(stop_token_ids=(10**6,))}},
        "sampling.talker.stop_token_ids",
        "1000000 is not in the vocabulary; use ids below",
    ),
}
SETTINGS: dict[str, tuple[dict[str, Any], str, str]] = {
    "temperature": ({"temperature": -0.5}, "temperature", "-0.5 is out of range; use 0 (greedy), or 0.001 to 100"),
    "text": ({"temperature": "hot"}, "temperature", "Expected `float | null`, got `str`; give a value of that type"),
    "top_p": ({"top_p": 0.0}, "top_p", "0.0 is out of range; use a number above 0, up to 1 (off)"),
    "code_temperature": ({"code_temperature": 1e-9}, "code_temperature", "use 0 (greedy), or 0.001 to 100"),
    "code_top_k": ({"code_top_k": -2}, "code_top_k", "-2 is out of range; use 0 or -1 (off), or more"),
    "code_top_p": ({"code_top_p": 1.5}, "code_top_p", "1.5 is out of range; use a number above 0, up to 1 (off)"),
    "top_k": ({"top_k": -2}, "top_k", "-2 is out of range; use 0 or -1 (off), or more"),
    "max_tokens": ({"max_tokens": 0}, "max_tokens", "0 is out of range; use at least 1"),
    "repetition_penalty": ({"repetition_penalty": 0.0}, "repetition_penalty", "use 0.01 to 100; 1 is none"),
    "seed": ({"seed": -1}, "seed", "-1 is out of range; use 0 to 2**63 - 1"),
}


def refuse(omni: Omni, messages: Any, settings: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        omni.generate(messages, stream=False, **settings)
    assert caught.value.field == field
    assert words in str(caught.value)


def test_a_refused_request_does_not_affect_the_one_beside_it(omni: Omni, bystander: Bystander, tmp_path: Path) -> None:
    with bystander.beside(omni):
        for make, field, words in (*SOUNDS.values(), *PICTURES.values()):
            refuse(omni, user(make(tmp_path), "what is it"), {}, field, words)
        for chat in CHATS.values():
            refuse(omni, *chat)
        for fields, name, words in SETTINGS.values():
            refuse(omni, "hi", {"sampling": SamplingParams(**fields)}, f"sampling.{name}", words)
            by_stage = {"talker": SamplingParams(**fields)}
            refuse(omni, "hi", {"sampling": by_stage}, f"sampling.talker.{name}", words)
        refuse(omni, "hi", {"modalities": ("video",)}, "modalities", "use 'text' or 'audio'")
        refuse(omni, "hi", {"modalities": ("text",), "voice": "ethan"}, "voice", 'add "audio" to modalities')
        refuse(omni, "hi", {"sampling": {"talkr": SamplingParams()}}, "sampling.talkr", "use one of thinker, talker")


def test_speech_from_a_model_that_does_not_speak() -> None:
    model = tiny_checkpoint(3, talker=False, **SHAPE)
    with Omni(model, device="cpu", plugins=tiny_plugins()) as omni:
        assert omni.modalities == ("text",)
        refuse(omni, "hi", {"modalities": ("text", "audio")}, "modalities", "does not give 'audio'; use 'text'")
        refuse(omni, "hi", {"voice": "ethan"}, "voice", "leave voice out")
        refuse(omni, "hi", {"sampling": lengths(3, 3)}, "sampling.talker", "use one of thinker")
        result = omni.generate("hi", sampling=SamplingParams(max_tokens=4), stream=False)
        assert (result.usage.tokens, result.audio) == ({"thinker": 4}, None)
        with pytest.raises(InputError, match="of a model that speaks"):
            result.save("never.wav")
        assert_freed(omni)
