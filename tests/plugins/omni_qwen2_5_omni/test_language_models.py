"""Thinker and talker against transformers' `generate`: what one emits is what the other hears, token by token.

Shape legend: T tokens of a prompt, D the thinker's width, V vocabulary.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from omni_ar.model import NextTokens, PlacedEmbedding, PromptTokens
from omni_qwen2_5_omni import talker, thinker
from omni_qwen2_5_omni.config import read_config
from omni_qwen2_5_omni.talker import EOS, FIRST_VOICE, NONE, PAD, Talker
from omni_qwen2_5_omni.thinker import Thinker
from omni_qwen2_5_omni.voices import read_voices
from tests.support.one_row import OneRow
from tests.support.tiers import few
from tests.support.tiny_qwen2_5_omni import (
    Spoken,
    picture,
    prompt_ids,
    reference_model,
    sound,
    speak,
    stage_context,
    tiny_folder,
)

TOLERANCE = 1e-5
SHAPES: list[dict[str, Any]] = [
    {"codec_stop_gain": 0.0},
    {"seed": 3, "layers": 2, "heads": 2, "kv_heads": 1, "hidden_size": 48, "talker_heads": 4, "talker_kv_heads": 2},
    {"seed": 5, "talker_layers": 3, "talker_head_dim": 32, "talker_hidden_size": 64, "stop_gain": 0.0},
]
MEDIA = ["text", "image", "audio", "both"]


def positions(folder: Path, ids_T: Tensor, media: dict[str, Tensor]) -> Tensor:
    """As transformers lays them out, `[3, T]`."""
    lengths = media["feature_attention_mask"].sum(1) if "feature_attention_mask" in media else None
    positions_31T, _ = reference_model(folder).thinker.get_rope_index(
        ids_T[None], media.get("image_grid_thw"), None, torch.ones_like(ids_T)[None], False, lengths
    )
    positions_3T: Tensor = positions_31T[:, 0]
    return positions_3T


def chat(folder: Path, kind: str) -> tuple[Tensor, dict[str, Any]]:
    """A prompt with media, and their features."""
    media: dict[str, Any] = {}
    text = ""
    if kind in ("image", "both"):
        media |= picture(folder)
        text += "<|vision_bos|>" + 6 * "<|IMAGE|>" + "<|vision_eos|>"
    if kind in ("audio", "both"):
        media |= sound()
        text += "<|audio_bos|>" + 12 * "<|AUDIO|>" + "<|audio_eos|>"
    return prompt_ids(folder, "what do you see", text), media


@torch.no_grad()
def encoded(folder: Path, ids_T: Tensor, media: dict[str, Tensor]) -> tuple[PlacedEmbedding, ...]:
    """What transformers' towers make of the media, where it belongs in the prompt."""
    model, config = reference_model(folder).thinker, reference_model(folder).config.thinker_config
    embeddings = []
    if "pixel_values" in media:
        made = torch.cat(list(model.get_image_features(media["pixel_values"], media["image_grid_thw"]).pooler_output))
        places = (ids_T == config.image_token_index).nonzero().flatten()
        embeddings.append(PlacedEmbedding("image", places, {"embeddings": made}))
    if "input_features" in media:
        made = model.get_audio_features(media["input_features"], media["feature_attention_mask"]).last_hidden_state
        places = (ids_T == config.audio_token_index).nonzero().flatten()
        embeddings.append(PlacedEmbedding("audio", places, {"embeddings": made}))
    return tuple(embeddings)


@torch.no_grad()
def think(folder: Path, spoken: Spoken, media: dict[str, Tensor]) -> tuple[list[int], Tensor]:
    """Greedy, as many tokens as transformers wrote; and what is emitted of all tokens but the last, `[T + N - 1, D]`."""
    model = thinker.build(stage_context(folder, "thinker"))
    row, ids_T = OneRow(model), spoken.prompt_T
    embeddings, places_3T = encoded(folder, ids_T, media), positions(folder, ids_T, media)
    x_TD = model.embed_prompt(PromptTokens(ids_T[None], embeddings))
    logits_TV, said = row.run(x_TD, places_3T, embeddings), []
    start = int(places_3T.max()) + 1
    for step in range(len(spoken.ids)):
        said.append(int(logits_TV[-1].argmax()))
        if step + 1 < len(spoken.ids):
            none = torch.empty(0, 1, dtype=torch.int64)
            x_1D = model.embed_next(NextTokens(torch.tensor(said[-1:]), none, torch.empty(1, 0), torch.empty(1, 0)))
            logits_TV = row.run(x_1D, torch.full((3, 1), start + step))
    return said, row.payload


@torch.no_grad()
def hear(folder: Path, spoken: Spoken, emitted_TD: Tensor, media: dict[str, Tensor]) -> tuple[Talker, list[Tensor]]:
    """The talker's logits of each step, conditioned by what our thinker emitted, forced to transformers' codes."""
    model, voice = talker.build(stage_context(folder, "talker")), read_voices_of(folder)
    config = read_config(stage_context(folder, "talker").checkpoint).talker
    assert config is not None
    length = len(spoken.prompt_T)
    text_T, code_T = torch.full((2, length + 2), NONE)
    text_T[length], code_T[length], code_T[length + 1] = FIRST_VOICE, config.codec_pad, config.codec_bos
    told = torch.cat([torch.arange(length), torch.tensor([length + 1])])
    heard = PlacedEmbedding("hidden", told, {"hidden": emitted_TD[: length + 1]})
    row = OneRow(model)
    read_T = torch.cat([spoken.prompt_T, torch.tensor([voice, spoken.ids[0]])])
    places_3T = positions(folder, read_T, media)
    x_TD = model.embed_prompt(PromptTokens(torch.stack((text_T, code_T)), (heard,)))
    logits = [row.run(x_TD, places_3T, (heard,))[-1]]
    replies = list(emitted_TD[length + 1 :])
    start = int(places_3T.max()) + 1
    for step, code in enumerate(spoken.codes[:-1]):
        text, heard_1E = NONE, torch.zeros(1, emitted_TD.shape[1])
        if step < len(replies):
            heard_1E = replies[step][None]
        else:
            text = EOS if step == len(replies) else PAD
        asked = NextTokens(torch.tensor([code]), torch.tensor([[text]]), torch.empty(1, 0), heard_1E)
        x_1D = model.embed_next(asked)
        logits.append(row.run(x_1D, torch.full((3, 1), start + step))[-1])
    return model, logits


def read_voices_of(folder: Path) -> int:
    return read_voices(stage_context(folder, "talker").checkpoint)["Chelsie"].bos


def difference(made: list[Tensor], expected: list[Tensor]) -> float:
    ours, theirs = torch.stack(made), torch.stack(expected)
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.parametrize(
    ("shape", "kind"), [*((SHAPES[0], kind) for kind in MEDIA), (SHAPES[1], "both"), (SHAPES[2], "both")], ids=str
)
def test_thinker_and_talker_are_transformers(shape: dict[str, Any], kind: str) -> None:
    folder = tiny_folder(**shape)
    ids_T, media = chat(folder, kind)
    spoken = speak(folder, ids_T, **media)
    said, emitted_TD = think(folder, spoken, media)
    assert said == spoken.ids
    _, logits = hear(folder, spoken, emitted_TD, media)
    assert difference(logits, spoken.logits) < TOLERANCE


def test_references_are_not_degenerate() -> None:
    folder = tiny_folder(**SHAPES[0])
    answers = {kind: speak(folder, *chat(folder, kind)[:1], **chat(folder, kind)[1]) for kind in MEDIA}
    assert len({tuple(spoken.ids) for spoken in answers.values()}) == len(MEDIA)
    assert len({tuple(spoken.codes) for spoken in answers.values()}) == len(MEDIA)
    assert all(len(set(spoken.codes)) > 3 and len(set(spoken.ids)) > 2 for spoken in answers.values())


@pytest.mark.parametrize(
    "fault", few(1, ["a token late", "media's embeddings kept", "prompt unheard", "embedding unheard"])
)
def test_planted_fault_in_what_is_emitted_is_seen(fault: str) -> None:
    folder = tiny_folder(**SHAPES[0])
    ids_T, media = chat(folder, "both")
    spoken = speak(folder, ids_T, **media)
    _, emitted_TD = think(folder, spoken, media)
    length, places = len(ids_T), encoded(folder, ids_T, media)[0]
    match fault:
        case "a token late":
            emitted_TD[length:] = emitted_TD[length - 1 : -1].clone()
        case "media's embeddings kept":
            emitted_TD[places.tokens_n] += places.tensors["embeddings"]
        case "prompt unheard":
            emitted_TD[3] = 0
        case "embedding unheard":
            table = reference_model(folder).thinker.model.embed_tokens.weight.detach()
            emitted_TD[length + 2] -= table[spoken.ids[2]]
    _, logits = hear(folder, spoken, emitted_TD, media)
    assert difference(logits, spoken.logits) > 1e-3


def test_shapes_say_what_is_emitted_and_taken() -> None:
    folder = tiny_folder()
    ours: tuple[Thinker, Talker] = (
        thinker.build(stage_context(folder, "thinker")),
        talker.build(stage_context(folder, "talker")),
    )
    assert (ours[0].shape.payload_width, ours[0].shape.emits_tokens) == (64, True)
    assert (ours[1].shape.prompt_columns, ours[1].shape.step_columns) == (("text", "code"), ("text",))
    assert ours[1].shape.step_width == 64
    assert thinker.build(stage_context(tiny_folder(talker=False), "thinker")).shape.payload_width == 0
