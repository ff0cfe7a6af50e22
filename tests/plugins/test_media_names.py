"""A medium has one name in errors, from the request to the last stage that takes it: its path in the messages."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import omni_csm.frontend
import omni_qwen2_5_omni.frontend
import omni_qwen3_omni.frontend
from omni.checkpoint import Checkpoint
from omni.frontend.base import Chat, Frontend
from omni.frontend.messages import parse_messages
from omni.payload import Payload
from omni_ar.inputs import Prompt
from omni_encoder.inputs import MediaItem
from tests.support.csm_reference import tiny_csm
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_qwen2_5_omni import tiny_folder

SOUND = {"type": "input_audio", "input_audio": np.zeros(8000, np.float32)}
PICTURE = {"type": "image_url", "image_url": {"url": np.zeros((56, 84, 3), np.uint8)}}
TEXT = {"type": "text", "text": "so"}

OMNI = [
    {"role": "user", "content": [PICTURE, SOUND, TEXT]},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": [SOUND, PICTURE]},
]
FIELDS = {
    "audio": ["messages[0].content[1].input_audio", "messages[2].content[0].input_audio"],
    "image": ["messages[0].content[0].image_url", "messages[2].content[1].image_url"],
}


def encoded(inputs: Mapping[str, Sequence[Payload]], stage: str) -> list[str]:
    items = [payload.meta for payload in inputs[stage]]
    return [item.field for item in items if isinstance(item, MediaItem)]


def awaited(inputs: Mapping[str, Sequence[Payload]], stage: str, embedding: str) -> list[str]:
    (payload,) = inputs[stage]
    assert isinstance(payload.meta, Prompt)
    return [slot.called for slot in payload.meta.placeholders if slot.name == embedding]


@pytest.mark.parametrize(
    ("build", "folder"),
    [
        (omni_qwen3_omni.frontend.build, tiny_checkpoint),
        (omni_qwen2_5_omni.frontend.build, tiny_folder),
    ],
    ids=["qwen3_omni", "qwen2_5_omni"],
)
def test_stages_know_the_path_of_each_medium(
    build: Callable[[Checkpoint], Frontend], folder: Callable[[], Path]
) -> None:
    chat = Chat(parse_messages(OMNI), frozenset({"text"}), None, {})
    inputs = build(Checkpoint(folder())).prepare(chat).inputs
    for kind, stage in (("audio", "audio_encoder"), ("image", "vision_encoder")):
        assert encoded(inputs, stage) == awaited(inputs, "thinker", kind) == FIELDS[kind]


def test_stages_know_the_path_of_each_turns_sound() -> None:
    frontend = omni_csm.frontend.build(Checkpoint(tiny_csm()))
    turns = [{"role": "user", "content": [TEXT, SOUND], "name": "0"}, {"role": "user", "content": "so", "name": "1"}]
    read = parse_messages(turns, sample_rate=frontend.sample_rate, names=True)
    inputs = frontend.prepare(Chat(read, frozenset({"audio"}), "1", {})).inputs
    expected = ["messages[0].content[1].input_audio"]
    assert encoded(inputs, "audio_encoder") == awaited(inputs, "backbone", "audio") == expected
