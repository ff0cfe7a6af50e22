"""Messages as users write them."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from omni.errors import InputError
from omni.frontend.base import AudioPart, ImagePart, Message, TextPart
from omni.frontend.messages import parse_messages

SOUND = np.linspace(-0.5, 0.5, 4000, dtype=np.float32)
PICTURE = Image.new("RGB", (3, 2), (10, 20, 30))


def wav() -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, SOUND, 16000, format="WAV", subtype="FLOAT")
    return buffer.getvalue()


def png() -> bytes:
    buffer = io.BytesIO()
    PICTURE.save(buffer, "PNG")
    return buffer.getvalue()


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def only_part(messages: list[dict[str, Any]]) -> Any:
    (message,) = parse_messages(messages)
    (part,) = message.content
    return part


def test_a_string_is_the_users_only_message() -> None:
    assert parse_messages("hi") == (Message("user", (TextPart("hi"),)),)


def test_roles_and_parts_keep_their_order() -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
    ]
    parsed = parse_messages(messages)
    assert [message.role for message in parsed] == ["system", "user", "assistant"]
    assert [part.text for part in parsed[1].content if isinstance(part, TextPart)] == ["a", "b"]


@pytest.mark.parametrize(
    "source",
    [
        {"data": base64.b64encode(wav()).decode(), "format": "wav"},
        f"data:audio/wav;base64,{base64.b64encode(wav()).decode()}",
        wav(),
        SOUND,
        torch.from_numpy(SOUND),
        (SOUND, 16000),
    ],
    ids=["dict", "data-uri", "bytes", "array", "tensor", "pair"],
)
def test_input_audio_takes_every_source(source: object) -> None:
    part = only_part(user({"type": "input_audio", "input_audio": source}))
    assert isinstance(part, AudioPart)
    assert part.field == "messages[0].content[0].input_audio"
    np.testing.assert_array_equal(part.samples, SOUND)


@pytest.mark.parametrize(
    "source",
    [
        f"data:image/png;base64,{base64.b64encode(png()).decode()}",
        {"url": f"data:image/png;base64,{base64.b64encode(png()).decode()}"},
        {"url": f"data:image/png;base64,{base64.b64encode(png()).decode()}", "detail": "auto"},
        png(),
        PICTURE,
        np.asarray(PICTURE),
        torch.from_numpy(np.array(PICTURE)),
    ],
    ids=["data-uri", "url-dict", "detail", "bytes", "picture", "array", "tensor"],
)
def test_image_url_takes_every_source(source: object) -> None:
    part = only_part(user({"type": "image_url", "image_url": source}))
    assert isinstance(part, ImagePart)
    np.testing.assert_array_equal(np.asarray(part.image), np.asarray(PICTURE))


def test_paths_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    (tmp_path / "a.png").write_bytes(png())
    (message,) = parse_messages(
        user(
            {"type": "image_url", "image_url": str(tmp_path / "a.png")},
            {"type": "input_audio", "input_audio": tmp_path / "a.wav"},
        )
    )
    assert [type(part) for part in message.content] == [ImagePart, AudioPart]


@pytest.mark.parametrize(
    ("messages", "field", "words"),
    [
        (None, "messages", "NoneType"),
        ([], "messages", "empty"),
        (["hi"], "messages[0]", "str"),
        ([{"content": "hi"}], "messages[0].role", "missing"),
        ([{"role": "user"}], "messages[0].content", "missing"),
        ([{"role": "robot", "content": "hi"}], "messages[0].role", "'robot' is unknown"),
        ([{"role": ["user"], "content": "hi"}], "messages[0].role", "unknown"),
        ([{"role": "user", "content": "hi", "name": "x"}], "messages[0].name", "leave it out"),
        ([{"role": "user", "content": "hi", "mood": "x"}], "messages[0].mood", "not known"),
        ([{"role": "user", "content": None}], "messages[0].content", "NoneType"),
        ([{"role": "user", "content": []}], "messages[0].content", "empty"),
        (user({"type": "text", "text": "a"}, {"text": "b"}), "messages[0].content[1].type", "None is unknown"),
        (user({"type": ["text"], "text": "b"}), "messages[0].content[0].type", "unknown"),
        (user({"type": "tool", "tool": 1}), "messages[0].content[0].type", "text, input_audio, image_url"),
        (user({"type": "text"}), "messages[0].content[0].text", "missing"),
        (user({"type": "text", "text": 3}), "messages[0].content[0].text", "int"),
        (user({"type": "text", "text": "a", "tone": 1}), "messages[0].content[0].tone", "not known"),
        (user({"type": "input_audio", "input_audio": "none.wav"}), "messages[0].content[0].input_audio", "none.wav"),
        (user({"type": "input_audio", "input_audio": 3}), "messages[0].content[0].input_audio", "int"),
        (user({"type": "image_url", "image_url": {"src": "x"}}), "messages[0].content[0].image_url.url", "missing"),
        (
            user({"type": "image_url", "image_url": {"url": "x", "detail": "high"}}),
            "messages[0].content[0].image_url.detail",
            "'high'",
        ),
        (user({"type": "image_url", "image_url": {"url": "no.png"}}), "messages[0].content[0].image_url", "no.png"),
        (["x", {"role": "user", "content": "y"}], "messages[0]", "give a dict"),
    ],
)
def test_errors_name_the_field(messages: object, field: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_messages(messages)
    assert caught.value.field == field
    assert words in str(caught.value)


@pytest.mark.parametrize("kind", ["video", "video_url", "input_video"])
def test_video_is_refused_by_name(kind: str) -> None:
    with pytest.raises(InputError, match="video input is not supported"):
        parse_messages(user({"type": kind, kind: {"url": "a.mp4"}}))


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ("a\ud800", "messages"),
        ([{"role": "user", "content": "a\ud800"}], "messages[0].content"),
        (user({"type": "text", "text": "a\ud800"}), "messages[0].content[0].text"),
    ],
    ids=["chat", "content", "part"],
)
def test_text_that_is_no_unicode_is_refused(messages: object, field: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_messages(messages)
    assert str(caught.value).startswith(f"{field}: is no valid Unicode")
