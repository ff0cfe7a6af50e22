"""Speech of a text that a rule ends, through the public interface: that of transformers, given the same noise."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from transformers import Qwen2Tokenizer

from omni import Omni, Result, SamplingParams, StructuredOutput
from omni.frontend.base import Chat, Prepared
from omni.payload import Payload
from omni_qwen2_5_omni.frontend import OmniFrontend
from tests.support.omni_engine import TOLERANCE
from tests.support.tiers import SLOW, few
from tests.support.tiny_omni import assert_freed, tiny_plugins
from tests.support.tiny_qwen2_5_omni import prompt_ids, reference_model, sound_of, speak, tiny_folder

TOKENS, CODES, STEPS = 9, 20, 2
QUESTION = "how many people"
NOISE_TM = torch.randn(2 * CODES, 8, generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_folder(codec_stop_gain=0.0, stop_gain=0.0)


@pytest.fixture
def omni(folder: Path) -> Iterator[Omni]:
    """Every request begins its spectrogram as `NOISE_TM`, in windows that hold the whole speech."""
    prepare = OmniFrontend.prepare
    whole = {"token2wav.first_chunk_blocks": 5, "token2wav.num_steps": STEPS}

    def prepare_with_noise(frontend: OmniFrontend, chat: Chat) -> Prepared:
        prepared = prepare(frontend, chat)
        voices = [Payload(voice.meta, {"noise": NOISE_TM}) for voice in prepared.inputs["token2wav"]]
        return Prepared({**prepared.inputs, "token2wav": voices}, prepared.edges, prepared.prompt_tokens)

    with (
        patch.object(OmniFrontend, "prepare", prepare_with_noise),
        Omni(folder, device="cpu", plugins=tiny_plugins(), overrides=whole) as omni,
    ):
        yield omni
        assert_freed(omni)


def answer(omni: Omni, max_tokens: int = TOKENS, talker: dict[str, Any] | None = None, **thinker: Any) -> Result:
    spoken = SamplingParams(**(talker or {"max_tokens": CODES, "temperature": 0.0}))
    sampling = {"thinker": SamplingParams(max_tokens=max_tokens, **thinker), "talker": spoken}
    return omni.generate(QUESTION, sampling=sampling, stream=False)


def assert_spoken(result: Result, folder: Path, said: Sequence[int]) -> None:
    """The sound is that of transformers, whose thinker generates these tokens and ends by itself."""
    prompt_T = prompt_ids(folder, QUESTION)
    text = [*said, reference_model(folder).thinker.generation_config.eos_token_id]

    def next_ids(_: int, so_far_T: torch.Tensor) -> list[int]:
        return [text[len(so_far_T) - len(prompt_T)]]

    spoken = speak(folder, prompt_T, tokens=len(text), codes=CODES, thinker_prefix_allowed_tokens_fn=next_ids)
    assert spoken.ids == text
    expected = sound_of(folder, spoken.codes, NOISE_TM, "Chelsie", STEPS)
    assert result.audio is not None
    assert result.audio.shape == expected.shape
    assert (result.audio - expected).abs().max() < TOLERANCE * expected.abs().max()


@pytest.mark.parametrize(("given", "withheld"), few(1, [(2, 3), (1, 1), (5, 1), (4, 4)], SLOW))
def test_all_that_comes_before_a_stop_string_is_spoken(omni: Omni, folder: Path, given: int, withheld: int) -> None:
    said = speak(folder, prompt_ids(folder, QUESTION), tokens=TOKENS, codes=CODES).ids
    stop = Qwen2Tokenizer.from_pretrained(folder).decode(said[given : given + withheld])
    assert_spoken(answer(omni, stop=(stop,)), folder, said[:given])


@pytest.mark.parametrize("form", [" you", " you see", "how many people"])
def test_all_of_a_text_that_its_grammar_ends_is_spoken(omni: Omni, folder: Path, form: str) -> None:
    result = answer(omni, structured=StructuredOutput(choice=(form,)))
    assert (result.text, result.finish_reasons["thinker"]) == (form, "stop")
    assert_spoken(result, folder, result.tokens)


def test_one_token_is_not_spoken(omni: Omni) -> None:
    result = answer(omni, max_tokens=1)
    assert result.error is None
    assert result.audio is None or not len(result.audio)


def test_codes_without_a_sound_do_no_harm() -> None:
    """A talker that continues past its end generates control codes, which have no embedding."""
    folder = tiny_folder(seed=3, codec_stop_gain=2.5, stop_gain=0.0)
    with Omni(folder, device="cpu", plugins=tiny_plugins(), overrides={"token2wav.num_steps": 1}) as omni:
        said = [answer(omni, 6, {"max_tokens": 40, "ignore_eos": True, "seed": seed}) for seed in range(3)]
    assert [result.usage.tokens["talker"] for result in said] == [40] * 3
    for result in said:
        assert result.audio is not None
        assert result.audio.isfinite().all()
