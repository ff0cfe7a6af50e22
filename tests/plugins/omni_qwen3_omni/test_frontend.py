"""From a chat to stage inputs: ids, positions, embeddings, the talker's prompt; and refusals."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from omni.checkpoint import Checkpoint
from omni.errors import InputError
from omni.frontend.base import Chat, Prepared
from omni.payload import Payload
from omni_ar.inputs import Placeholder, Prompt
from omni_ar.text_conditioning import TextConditioningArgs
from omni_encoder.inputs import MediaItem
from omni_qwen3_omni.frontend import OmniFrontend, build
from tests.support.reference import Reference, chat, picture, reference_of, says, sound, tiny_checkpoint, with_tokens

MEDIA_EVERYWHERE = chat(
    says("system", "look at", picture(64, 64, 1), "and hear", sound(0.3, 1)),
    says("user", picture(64, 96, 2), sound(1.3, 2), "which one"),
    says("assistant", "this one", picture(32, 64, 3)),
    says("user", sound(0.5, 3), "and", sound(1.1, 4), picture(96, 96, 4), "now"),
)


@pytest.fixture(scope="module")
def frontend() -> OmniFrontend:
    return build(Checkpoint(tiny_checkpoint()))


@pytest.fixture(scope="module")
def reference() -> Reference:
    return reference_of(tiny_checkpoint())


def _prompt(prepared: Prepared) -> Prompt:
    (payload,) = prepared.inputs["thinker"]
    assert isinstance(payload.meta, Prompt)
    return payload.meta


def _items(payloads: Sequence[Payload]) -> list[MediaItem]:
    items = [payload.meta for payload in payloads]
    assert all(isinstance(item, MediaItem) for item in items)
    return items  # type: ignore[return-value]


def test_ids_and_features_are_those_of_the_processor(frontend: OmniFrontend, reference: Reference) -> None:
    prepared, inputs = frontend.prepare(MEDIA_EVERYWHERE), reference.inputs(MEDIA_EVERYWHERE)

    ids = inputs["input_ids"][0]
    prompt = _prompt(prepared)
    assert prompt.columns.tolist() == [ids.tolist()]
    assert prepared.prompt_tokens == len(ids)
    assert prompt.penalized_ids.tolist() == sorted(set(ids.tolist()))
    pixels = torch.cat([payload.tensors["pixels"] for payload in prepared.inputs["vision_encoder"]])  # type: ignore[misc]
    assert torch.equal(pixels, inputs["pixel_values"])
    lengths = inputs["feature_attention_mask"].sum(1).tolist()
    for payload, mel, frames in zip(prepared.inputs["audio_encoder"], inputs["input_features"], lengths, strict=True):
        features = payload.tensors["features"]
        assert isinstance(features, torch.Tensor)
        assert torch.equal(features, mel[:, :frames])


def test_every_media_token_belongs_to_one_embedding(frontend: OmniFrontend, reference: Reference) -> None:
    """In order, and as many as the item becomes embeddings."""
    prepared, config = frontend.prepare(MEDIA_EVERYWHERE), reference.model.config.thinker_config
    prompt = _prompt(prepared)
    ids = prompt.columns[0]
    for name, stage, token, count in (
        ("audio", "audio_encoder", config.audio_token_id, 4),
        ("image", "vision_encoder", config.image_token_id, 4),
    ):
        slots = [slot for slot in prompt.placeholders if slot.name == name]
        items = _items(prepared.inputs[stage])
        assert [slot.index for slot in slots] == [item.index for item in items] == list(range(count))
        assert [len(slot.positions) for slot in slots] == [item.length for item in items]
        assert np.concatenate([slot.positions for slot in slots]).tolist() == np.flatnonzero(ids == token).tolist()
        assert all(_consecutive(slot) for slot in slots)


def _consecutive(slot: Placeholder) -> bool:
    return bool((np.diff(slot.positions) == 1).all())


def test_hidden_states_are_wanted_of_media_in_user_turns(frontend: OmniFrontend, reference: Reference) -> None:
    prompt = _prompt(frontend.prepare(MEDIA_EVERYWHERE))

    config, role = reference.model.config, 0
    expected = []
    for position, token in enumerate(prompt.columns[0].tolist()):
        if token == config.im_start_token_id:
            role = int(prompt.columns[0, position + 1])
        elif role == config.user_token_id and token in (
            config.thinker_config.audio_token_id,
            config.thinker_config.image_token_id,
        ):
            expected.append(position)
    assert prompt.payload_positions.tolist() == expected


@pytest.mark.parametrize(
    "asked",
    [
        chat("hello"),
        chat(picture(64, 96, 2), sound(1.3, 2), "which one", voice="aiden"),
        chat(
            says("system", "be kind"),
            says("user", sound(0.4)),
            says("assistant", "well"),
            says("user", picture(32, 96)),
        ),
    ],
    ids=["text", "media", "turns"],
)
def test_the_talker_prompt_equals_transformers_embeddings(
    frontend: OmniFrontend, reference: Reference, asked: Chat
) -> None:
    prompt = _prompt(frontend.prepare(asked))
    args = frontend.prepare(asked).edges["thinker->talker"]
    assert isinstance(args, TextConditioningArgs)
    given = _talker_arguments(reference, asked)
    talker, thinker = reference.model.talker, reference.model.thinker
    text_T, codec_T = torch.from_numpy(args.prompt.columns.copy())
    text_T[-1] = reference.answer(asked).ids[0]
    with torch.no_grad():
        embedded_TD = talker.text_projection(thinker.get_input_embeddings()(text_T))
        embedded_TD[codec_T >= 0] += talker.get_input_embeddings()(codec_T[codec_T >= 0])
        positions_P1T, delta = talker.get_rope_index(
            given["talker_input_ids"],
            given.get("image_grid_thw"),
            attention_mask=given["attention_mask"],
            audio_seqlens=given.get("audio_feature_lengths"),
        )
    media = (
        np.concatenate([slot.positions for slot in args.prompt.placeholders])
        if args.prompt.placeholders
        else np.empty(0)
    )
    texts = np.setdiff1d(np.arange(len(text_T)), media)

    torch.testing.assert_close(embedded_TD[texts], given["inputs_embeds"][0, texts], rtol=1e-5, atol=1e-5)
    assert args.prompt.positions.tolist() == positions_P1T[:, 0].tolist()
    assert args.prompt.next_position == len(text_T) + int(delta)
    assert len(media) == prompt.payload_positions.size


def _talker_arguments(reference: Reference, asked: Chat) -> dict[str, Any]:
    """What `generate` gives to the talker's own `generate`."""
    with mock.patch.object(reference.model.talker, "generate", side_effect=InterruptedError) as generate:
        fresh = Chat(asked.messages, asked.modalities, asked.voice, asked.sampling)
        with pytest.raises(InterruptedError):
            reference.generate(fresh)
    return dict(generate.call_args.kwargs)


def test_a_request_for_text_alone_has_no_input_for_the_talker(frontend: OmniFrontend) -> None:
    prepared = frontend.prepare(chat(picture(64, 64), voice=None))

    assert prepared.edges == {}
    assert _prompt(prepared).payload_positions.size == 0


def test_the_default_voice_is_the_first(frontend: OmniFrontend) -> None:
    asked = chat("hello", voice=frontend.voices[0])

    open_ = frontend.prepare(replace(asked, voice=None))

    assert _columns(open_).tolist() == _columns(frontend.prepare(asked)).tolist()
    assert _columns(open_).tolist() == _columns(frontend.prepare(replace(asked, voice="ETHAN"))).tolist()
    others = [_columns(frontend.prepare(replace(asked, voice=voice))).tolist() for voice in frontend.voices]
    assert len({str(columns) for columns in others}) == len(frontend.voices) == 3


def _columns(prepared: Prepared) -> NDArray[np.int64]:
    args = prepared.edges["thinker->talker"]
    assert isinstance(args, TextConditioningArgs)
    return args.prompt.columns


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (chat("hello", voice="bob"), r"^voice: 'bob' is unknown; use one of ethan, chelsie, aiden$"),
        (chat(""), r"^messages: hold no text, sound or picture; "),
        (chat(says("system", " "), says("user", "\n")), r"^messages: hold no text, sound or picture; "),
        (
            with_tokens(chat("a <|image_pad|>", picture(32, 32))),
            r"^messages\[0\]\.content: holds '<\|image_pad\|>'.*attach the media",
        ),
        (
            with_tokens(chat(says("user", "one"), says("user", "<|audio_", "pad|>"))),
            r"^messages\[1\]\.content: holds '<\|audio_pad\|>'",
        ),
        (with_tokens(chat("see <|video_pad|>", voice=None)), r"^messages\[0\]\.content: holds '<\|video_pad\|>'"),
    ],
)
def test_bad_requests_are_refused(frontend: OmniFrontend, asked: Chat, error: str) -> None:
    with pytest.raises(InputError, match=error):
        frontend.prepare(asked)
