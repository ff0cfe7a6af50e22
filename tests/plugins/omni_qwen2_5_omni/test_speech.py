"""Speech through the public interface, against transformers' `generate`, given the same noise: requests come and go together."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from transformers import Qwen2Tokenizer

from omni import Omni, SamplingParams, StructuredOutput
from omni.frontend.base import Chat, Prepared
from omni.payload import Payload
from omni_qwen2_5_omni.frontend import OmniFrontend
from tests.support.tiers import SLOW, few
from tests.support.tiny_omni import assert_freed, audio_of, picture, sound, tiny_plugins, user
from tests.support.tiny_qwen2_5_omni import as_transformers, reference_model, sound_of, speak, tiny_folder

TOLERANCE = 1e-4
"""Of the peak."""
TOKENS, CODES = 9, 20
SHAPES: list[dict[str, Any]] = [
    {"codec_stop_gain": 0.0, "stop_gain": 0.0},
    # Some answers end by themselves, and some speech.
    {"seed": 3, "codec_stop_gain": 2.5, "stop_gain": 1.5},
    {"seed": 5, "codec_stop_gain": 0.0, "talker_layers": 3, "dit_layers": 4, "look_ahead_layers": (0, 3)},
]
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (SHAPES[0], {"engine.graphs": True, "talker.max_in_flight": 4, "thinker.max_num_batched_tokens": 16}),
    (SHAPES[1], {"thinker.block_size": 4, "talker.block_size": 4, "talker.num_blocks": 24, "talker.max_num_seqs": 3}),
    (SHAPES[2], {"engine.graphs": True, "talker.max_num_seqs": 2, "token2wav.max_num_seqs": 2}),
]
STEPS = 2
WHOLE = {"token2wav.first_chunk_blocks": 5, "token2wav.num_steps": STEPS}
"""Windows that hold all of what is said."""
CHATS = [
    user("what do you see"),
    user(picture(1, 60, 100), sound(2, 0.6), "who are you"),
    user("how many people"),
    user(sound(3), "look at her"),
]
NOISE_TM = torch.randn(2 * CODES, 8, generator=torch.Generator().manual_seed(5))


@contextmanager
def noise_given() -> Iterator[None]:
    """Within, every request begins its spectrogram as `NOISE_TM`."""
    prepare = OmniFrontend.prepare

    def prepare_with_noise(frontend: OmniFrontend, chat: Chat) -> Prepared:
        prepared = prepare(frontend, chat)
        voices = [Payload(voice.meta, {"noise": NOISE_TM}) for voice in prepared.inputs["token2wav"]]
        return Prepared({**prepared.inputs, "token2wav": voices}, prepared.edges, prepared.prompt_tokens)

    with patch.object(OmniFrontend, "prepare", prepare_with_noise):
        yield


@pytest.mark.parametrize(("shape", "settings"), few(1, CASES, SLOW), ids=str)
def test_speech_is_transformers(shape: dict[str, Any], settings: dict[str, Any]) -> None:
    folder = tiny_folder(**shape)
    sampling = {
        "thinker": SamplingParams(max_tokens=TOKENS),
        "talker": SamplingParams(max_tokens=CODES, temperature=0.0),
    }
    voices = ("Chelsie", "Ethan")
    with (
        noise_given(),
        Omni(folder, device="cpu", plugins=tiny_plugins(), overrides=WHOLE | settings) as omni,
    ):
        streams = [
            omni.generate(chat, sampling=sampling, voice=voices[number % 2]) for number, chat in enumerate(CHATS)
        ]
        waves = [audio_of(list(stream)) for stream in streams]
        assert_freed(omni)
    heard = set()
    for number, (chat, wave) in enumerate(zip(CHATS, waves, strict=True)):
        voice, (ids_T, media) = voices[number % 2], as_transformers(folder, chat)
        spoken = speak(folder, ids_T, tokens=TOKENS, codes=CODES, voice=voice, **media)
        expected = sound_of(folder, spoken.codes, NOISE_TM, voice, STEPS)
        assert wave.shape == expected.shape
        assert (wave - expected).abs().max() < TOLERANCE * expected.abs().max()
        heard.add(tuple(spoken.codes))
    assert len(heard) == len(CHATS)


@pytest.mark.parametrize(("given", "withheld"), few(1, [(2, 3), (1, 1), (5, 1), (4, 4)], SLOW))
def test_all_that_comes_before_a_stop_string_is_spoken(given: int, withheld: int) -> None:
    folder, chat = tiny_folder(**SHAPES[0]), CHATS[2]
    ids_T, _ = as_transformers(folder, chat)
    said = speak(folder, ids_T, tokens=TOKENS, codes=CODES).ids
    stop = Qwen2Tokenizer.from_pretrained(folder).decode(said[given : given + withheld])
    sampling = {
        "thinker": SamplingParams(max_tokens=TOKENS, stop=(stop,)),
        "talker": SamplingParams(max_tokens=CODES, temperature=0.0),
    }
    with noise_given(), Omni(folder, device="cpu", plugins=tiny_plugins(), overrides=WHOLE) as omni:
        wave = audio_of(list(omni.generate(chat, sampling=sampling)))
        assert_freed(omni)
    assert_spoken(wave, folder, ids_T, said[:given])


@pytest.mark.parametrize("form", [" you", " you see", "how many people"])
def test_all_of_a_text_that_its_form_ends_is_spoken(form: str) -> None:
    folder, chat = tiny_folder(**SHAPES[0]), CHATS[2]
    sampling = {
        "thinker": SamplingParams(max_tokens=TOKENS, structured=StructuredOutput(choice=(form,))),
        "talker": SamplingParams(max_tokens=CODES, temperature=0.0),
    }
    with noise_given(), Omni(folder, device="cpu", plugins=tiny_plugins(), overrides=WHOLE) as omni:
        result = omni.generate(chat, sampling=sampling, stream=False)
        assert_freed(omni)
    assert (result.text, result.finish_reasons["thinker"]) == (form, "stop")
    assert result.audio is not None
    assert_spoken(result.audio, folder, as_transformers(folder, chat)[0], result.tokens)


def assert_spoken(wave: Tensor, folder: Path, prompt_T: Tensor, said: Sequence[int]) -> None:
    """The sound is that of transformers, whose thinker says these tokens and ends by itself."""
    text = [*said, reference_model(folder).thinker.generation_config.eos_token_id]

    def next_ids(_: int, so_far_T: Tensor) -> list[int]:
        return [text[len(so_far_T) - len(prompt_T)]]

    spoken = speak(folder, prompt_T, tokens=len(text), codes=CODES, thinker_prefix_allowed_tokens_fn=next_ids)
    assert spoken.ids == text
    expected = sound_of(folder, spoken.codes, NOISE_TM, "Chelsie", STEPS)
    assert wave.shape == expected.shape
    assert (wave - expected).abs().max() < TOLERANCE * expected.abs().max()


def test_without_audio_nothing_is_spoken() -> None:
    with Omni(tiny_folder(**SHAPES[0]), device="cpu", plugins=tiny_plugins()) as omni:
        result = omni.generate(
            user("hello"), sampling={"thinker": SamplingParams(max_tokens=4)}, modalities=("text",), stream=False
        )
        assert result.audio is None
        assert result.usage.tokens == {"thinker": 4}
        assert_freed(omni)


def test_one_token_is_not_spoken() -> None:
    with Omni(tiny_folder(**SHAPES[0]), device="cpu", plugins=tiny_plugins()) as omni:
        result = omni.generate(user("hello"), sampling={"thinker": SamplingParams(max_tokens=1)}, stream=False)
        assert result.error is None
        assert result.audio is None or not len(result.audio)
        assert_freed(omni)


def test_codes_without_a_sound_harm_nobody() -> None:
    """A talker that goes on past its end says control codes, of which there is no embedding."""
    shape, said = {"seed": 3, "codec_stop_gain": 2.5, "stop_gain": 0.0}, []
    with Omni(tiny_folder(**shape), device="cpu", plugins=tiny_plugins(), overrides={"token2wav.num_steps": 1}) as omni:
        for seed in range(3):
            sampling = {
                "thinker": SamplingParams(max_tokens=6),
                "talker": SamplingParams(max_tokens=40, ignore_eos=True, seed=seed),
            }
            said.append(omni.generate([{"role": "user", "content": "say"}], sampling=sampling, stream=False))
    assert [result.usage.tokens["talker"] for result in said] == [40] * 3
    for result in said:
        assert result.audio is not None
        assert result.audio.isfinite().all()
        assert len({len(one.audio) for one in said if one.audio is not None}) == 1
