"""A tiny Qwen2.5-Omni in the engine, requests of every kind, and the answers that they should get.

Shape legend: T mel frames, M mel bins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from omni.engine import EngineRequest
from omni.frontend.base import Chat
from omni.payload import Payload
from omni.sampling import SamplingParams
from tests.support.close_calls import WatchedCpu
from tests.support.omni_engine import UNCACHED, Expected, OmniEngine, assert_same, watched
from tests.support.reference import Answer, chat, picture, says, sound
from tests.support.tiny_qwen2_5_omni import given, reference_model, sound_of, speak, tiny_folder

Settings = Mapping[str, object]

SHAPES: dict[str, dict[str, Any]] = {
    "as written": {"codec_stop_gain": 0.0, "stop_gain": 0.0},
    # Some answers end by themselves, and some speech.
    "other sizes": {
        "seed": 5, "codec_stop_gain": 1.3, "stop_gain": 1.6, "layers": 4, "heads": 8, "talker_layers": 3,
        "talker_heads": 4, "talker_kv_heads": 2, "dit_layers": 4, "look_ahead_layers": (0, 3),
    },
}  # fmt: skip
CHATS: Sequence[Chat] = (
    chat(picture(84, 56, 1), sound(0.6, 1), "who are you", voice="Chelsie", max_text=20, max_codes=30),
    chat("hello world", voice="Ethan", max_text=24, max_codes=40),
    chat(
        says("system", "be kind"),
        says("user", sound(0.4, 2)),
        says("assistant", "one"),
        says("user", picture(60, 100, 2)),
        voice="Ethan",
        max_text=14,
        max_codes=16,
    ),
    chat(
        sound(0.8, 3),
        "look at her",
        voice="Chelsie",
        max_text=16,
        max_codes=24,
        thinker=SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=1, repetition_penalty=1.1),
        talker=SamplingParams(temperature=0.9, seed=2),
    ),
    chat("only write", picture(56, 56, 3), voice=None, max_text=20),
)
STEPS = 2
"""That noise becomes sound in."""
_EXACT: Settings = {"token2wav.num_steps": STEPS, "token2wav.tf32": False}
WHOLE: Settings = {**_EXACT, "token2wav.first_chunk_blocks": 10}
"""Windows that hold the whole speech, as in transformers."""
STREAMED: Settings = {**_EXACT, "token2wav.chunk_blocks": 2}
"""Windows that go on from the one before."""
NOISE_TM = torch.randn(2 * 40, 8, generator=torch.Generator().manual_seed(5))


class FixedNoiseEngine(OmniEngine):
    """Every request begins its spectrogram as the same noise."""

    def request(self, chat: Chat, priority: int = 0) -> EngineRequest:
        request = super().request(chat, priority)
        voices = [Payload(voice.meta, {"noise": NOISE_TM}) for voice in request.inputs.get("token2wav", ())]
        return replace(request, inputs={**request.inputs, "token2wav": voices}) if voices else request


@cache
def answers_alone(shape: str, whole: bool) -> list[Expected]:
    """To `CHATS`, on the CPU, in plain torch, one request after the other: those of transformers, but for sampled requests, and for
    sound that is not denoised as a whole. shape: of `SHAPES`."""
    folder = tiny_folder(**SHAPES[shape])
    expected = watched(FixedNoiseEngine(folder, {**UNCACHED, **(WHOLE if whole else STREAMED)}, WatchedCpu()), CHATS)
    for asked, one in zip(CHATS, expected, strict=True):
        if whole and not any(params.temperature for params in asked.sampling.values()):
            assert_same(one.result, answer(folder, asked))
    assert len({tuple(one.result.ids) for one in expected}) == len(CHATS)
    return expected


@torch.no_grad()
def answer(folder: Path, asked: Chat) -> Answer:
    """transformers' own, to a greedy request. With speech, at least two tokens of text."""
    prompt_T, media = given(folder, asked)
    tokens = asked.sampling["thinker"].max_tokens
    assert tokens is not None
    if asked.voice is None:
        made_1T = reference_model(folder).thinker.generate(
            input_ids=prompt_T[None],
            attention_mask=torch.ones_like(prompt_T)[None],
            max_new_tokens=tokens,
            do_sample=False,
            **media,
        )
        return Answer(
            made_1T[0, len(prompt_T) :].tolist(), torch.empty(0, 0, dtype=torch.int64), torch.empty(0).numpy()
        )
    codes = asked.sampling["talker"].max_tokens
    assert codes is not None
    spoken = speak(folder, prompt_T, tokens=tokens, codes=codes, voice=asked.voice, **media)
    talker = reference_model(folder).talker
    said = [code for code in spoken.codes if code not in (talker.codec_pad_token, talker.codec_eos_token)]
    wave_S = sound_of(folder, spoken.codes, NOISE_TM, asked.voice, STEPS)
    return Answer(spoken.ids, torch.tensor([said]), wave_S.numpy())
