"""Sampled codes, the talker's default: those of transformers, given the same noise."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from omni.frontend.base import Chat
from omni.sampling import SamplingParams
from tests.plugins.omni_qwen2_5_omni.fixed_noise import SHAPES, WHOLE, FixedNoiseEngine
from tests.support.reference import chat, picture, sampled_with, sound
from tests.support.tiers import chosen
from tests.support.tiny_qwen2_5_omni import given, reference_model, speak, tiny_folder

PUBLISHED = SamplingParams(temperature=0.9, top_k=40, top_p=0.8, repetition_penalty=1.05)
"""The family's defaults."""
ASKED = [
    SamplingParams(temperature=0.9),
    SamplingParams(temperature=1.3, top_k=10, top_p=0.95, repetition_penalty=1.3),
    SamplingParams(temperature=0.7, top_k=0, top_p=1.0, repetition_penalty=1.0),
]
MEDIA = [("hello world",), (picture(84, 56, 1), sound(0.6, 1), "who"), ("how many",)]
CHATS = [
    chat(
        *parts,
        voice="Ethan",
        max_text=14,
        max_codes=40,
        thinker=SamplingParams(temperature=0.0),
        talker=SamplingParams(seed=100 + number).with_defaults(sampling),
    )
    for number, (parts, sampling) in enumerate(zip(MEDIA, ASKED, strict=True))
]


def spoken(folder: Path, asked: Chat, sampling: SamplingParams) -> tuple[list[int], list[int]]:
    """Text ids and codes of transformers' `generate`."""
    model, (prompt_T, media) = reference_model(folder), given(folder, asked)
    generate = model.talker.generate

    def draw(**arguments: Any) -> Any:
        # The talker's prompt has ids, which are penalised; its noise is of the codes behind them.
        start = arguments["input_ids"].shape[1]
        arguments["repetition_penalty"] = sampling.repetition_penalty
        return generate(**arguments, logits_processor=sampled_with(sampling, start))

    tokens, codes = asked.sampling["thinker"].max_tokens, asked.sampling["talker"].max_tokens
    assert tokens is not None
    assert codes is not None
    assert asked.voice is not None
    with patch.object(model.talker, "generate", draw):
        said = speak(folder, prompt_T, tokens=tokens, codes=codes, voice=asked.voice, **media)
    stops = (model.talker.codec_pad_token, model.talker.codec_eos_token)
    return list(said.ids), [code for code in said.codes if code not in stops]


@pytest.mark.parametrize("shape", chosen(["other sizes"], SHAPES))
def test_sampled_codes_are_those_of_transformers(shape: str) -> None:
    folder = tiny_folder(**SHAPES[shape])
    results = FixedNoiseEngine(folder, WHOLE).run(CHATS)
    for asked, result in zip(CHATS, results, strict=True):
        if result.error is not None:
            raise result.error
        ids, codes = spoken(folder, asked, asked.sampling["talker"].with_defaults(PUBLISHED))
        assert result.ids == ids
        assert [frame[0] for frame in result.frames] == codes
    assert len({tuple(frame[0] for frame in result.frames) for result in results}) == len(CHATS)
