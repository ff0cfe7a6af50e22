"""Prompts against transformers' processors and its rotary positions; and the errors for wrong ones."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Qwen2Tokenizer, Qwen2VLImageProcessorPil, WhisperFeatureExtractor

from omni.checkpoint import Checkpoint
from omni.errors import InputError
from omni.frontend.base import AudioPart, Chat, ImagePart, Message, TextPart
from omni_ar.hidden_conditioning import HiddenConditioningArgs
from omni_ar.inputs import Prompt
from omni_diffusion.inputs import Voice
from omni_qwen2_5_omni.frontend import OmniFrontend, build
from omni_qwen2_5_omni.talker import FIRST_VOICE, NONE
from tests.support.received import tensors_of
from tests.support.reference import with_tokens
from tests.support.tiny_qwen2_5_omni import reference_model, tiny_folder


@pytest.fixture(scope="module")
def frontend() -> OmniFrontend:
    return build(Checkpoint(tiny_folder()))


def clip(samples: int, seed: int = 0) -> AudioPart:
    noise = np.random.default_rng(seed).normal(0, 0.1, samples).astype(np.float32)
    return AudioPart(samples=noise, field="messages[0].content[0]")


def picture(width: int, height: int) -> ImagePart:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)
    return ImagePart(image=Image.fromarray(pixels), field="messages[0].content[1]")


def chat(*parts: Any, modalities: tuple[str, ...] = ("text", "audio"), voice: str | None = None) -> Chat:
    message = Message(role="user", content=tuple(TextPart(part) if isinstance(part, str) else part for part in parts))
    return Chat((message,), frozenset(modalities), voice, {})


def prompt_of(prepared: Any) -> Prompt:
    (payload,) = prepared.inputs["thinker"]
    assert isinstance(payload.meta, Prompt)
    return payload.meta


def test_ids_and_positions_are_transformers(frontend: OmniFrontend) -> None:
    """Of pictures that are taller or wider, one behind the other, of clips between them, and of text all context."""
    parts = ("what is", picture(84, 56), clip(8000), "and", picture(28, 140), picture(56, 56), clip(3000), "here")
    prompt = prompt_of(frontend.prepare(chat(*parts)))
    ids_T = torch.from_numpy(prompt.columns[0])
    tokenizer = Qwen2Tokenizer.from_pretrained(tiny_folder())
    assert tokenizer.decode(ids_T.unique_consecutive()).count("<|AUDIO|>") == 2
    grids = [tensors_of(payload)["grid"] for payload in frontend.prepare(chat(*parts)).inputs["vision_encoder"]]
    lengths = [
        tensors_of(payload)["features"].shape[1] for payload in frontend.prepare(chat(*parts)).inputs["audio_encoder"]
    ]
    positions_31T, delta = reference_model(tiny_folder()).thinker.get_rope_index(
        ids_T[None], torch.stack(grids), None, torch.ones_like(ids_T)[None], False, torch.tensor(lengths)
    )
    assert np.array_equal(prompt.positions, positions_31T[:, 0].numpy())
    assert prompt.next_position == len(ids_T) + int(delta)
    assert [slot.name for slot in prompt.placeholders] == ["audio", "audio", "image", "image", "image"]
    assert all(len(set(prompt.columns[0, slot.positions])) == 1 for slot in prompt.placeholders)


@pytest.mark.parametrize("samples", [400, 4801, 32000])
def test_features_of_clips_are_those_of_the_published_processor(frontend: OmniFrontend, samples: int) -> None:
    part = clip(samples)
    (payload,) = frontend.prepare(chat(part)).inputs["audio_encoder"]
    extractor = WhisperFeatureExtractor.from_pretrained(tiny_folder())
    made = extractor(
        [part.samples], sampling_rate=16000, padding="max_length", return_attention_mask=True, return_tensors="pt"
    )
    expected = made["input_features"][0][:, made["attention_mask"][0].bool()]
    assert payload.tensors["features"].shape == expected.shape
    assert torch.allclose(tensors_of(payload)["features"], expected, atol=1e-5)


def test_features_of_pictures_are_those_of_the_published_processor(frontend: OmniFrontend) -> None:
    part = picture(100, 60)
    (payload,) = frontend.prepare(chat(part)).inputs["vision_encoder"]
    made = Qwen2VLImageProcessorPil.from_pretrained(tiny_folder())(images=[part.image], return_tensors="pt")
    assert torch.equal(tensors_of(payload)["pixels"], made["pixel_values"])
    assert torch.equal(tensors_of(payload)["grid"], made["image_grid_thw"][0])


def test_the_talker_reads_the_thinkers_inputs_and_two_more(frontend: OmniFrontend) -> None:
    prepared = frontend.prepare(chat(picture(84, 56), "what is it", voice="ethan"))
    prompt, args = prompt_of(prepared), prepared.edges["thinker->talker"]
    assert isinstance(args, HiddenConditioningArgs)
    length = prompt.length
    assert np.array_equal(prompt.payload_positions, np.arange(length))
    assert args.prompt.columns[:, length:].tolist() == [[FIRST_VOICE + 1, NONE], [40, 41]]
    assert (args.prompt.columns[:, :length] == NONE).all()
    assert np.array_equal(args.prompt.positions[:, :length], prompt.positions)
    after = prompt.next_position
    assert args.prompt.positions[:, length:].tolist() == [[after, after + 1]] * 3
    assert args.prompt.next_position == after + 2
    assert [slot.positions.tolist() for slot in args.prompt.placeholders] == [list(range(length)), [length + 1]]
    (voice,) = prepared.inputs["token2wav"]
    assert voice.meta == Voice(index=1)


def test_without_audio_nothing_is_emitted(frontend: OmniFrontend) -> None:
    prepared = frontend.prepare(chat("what is it", modalities=("text",)))
    assert prompt_of(prepared).payload_positions.size == 0
    assert not prepared.edges
    assert set(prepared.inputs) == {"thinker"}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (chat(" "), "messages: hold no text, sound or picture"),
        (with_tokens(chat("an <|IMAGE|>")), r"messages\[0\]\.content: holds '<\|IMAGE\|>'"),
        (chat("hello", voice="bob"), "voice: 'bob' is unknown; use one of Chelsie, Ethan"),
        (chat(clip(320)), r"content\[0\]: has 320 samples"),
        (chat(picture(2, 401)), r"content\[1\]: is 2 x 401 pixels, more than 200 times as long"),
    ],
)
def test_wrong_requests_are_refused(frontend: OmniFrontend, asked: Chat, message: str) -> None:
    with pytest.raises(InputError, match=message):
        frontend.prepare(asked)


def test_audio_of_a_checkpoint_that_only_writes_is_refused() -> None:
    silent = build(Checkpoint(tiny_folder(talker=False)))
    assert silent.voices == ()
    with pytest.raises(InputError, match="modalities: ask for audio"):
        silent.prepare(chat("hello"))
