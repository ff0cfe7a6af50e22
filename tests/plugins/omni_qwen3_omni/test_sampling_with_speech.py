"""Several answers, stop strings and forms of a model that speaks what it writes."""

import json

import pytest
import torch

from omni import InputError, Omni, Result, SamplingParams, StructuredOutput
from tests.support.tiny_omni import assert_like, user

QUESTION = user("what do you see in the picture")
TALKER = SamplingParams(seed=5, max_tokens=24)
FREE = {"thinker": SamplingParams(seed=3, temperature=1.0, max_tokens=16), "talker": TALKER}
SCHEMA = {
    "type": "object",
    "properties": {"sides": {"enum": [3, 4]}},
    "required": ["sides"],
    "additionalProperties": False,
}


def each(result: Result) -> list[Result]:
    return [result, *result.alternatives]


def test_every_answer_is_spoken_and_as_its_number_says(omni: Omni):
    answers = each(omni.generate(QUESTION, sampling=FREE, n=3, stream=False))
    again = each(omni.generate(QUESTION, sampling=FREE, n=2, stream=False))
    assert len({answer.tokens for answer in answers}) == 3
    assert all(answer.audio is not None and answer.error is None for answer in answers)
    assert [answer.tokens for answer in again] == [answer.tokens for answer in answers[:2]]
    for one, other in zip(again, answers, strict=False):
        assert_like(one.audio, other.audio)


def test_speakers_of_one_text_differ_by_their_number(omni: Omni):
    sampling = {
        "thinker": SamplingParams(temperature=0.0, max_tokens=12),
        "talker": SamplingParams(temperature=1.0, max_tokens=24),
    }
    first, second = each(omni.generate(QUESTION, sampling=sampling, n=2, stream=False))
    assert first.tokens == second.tokens
    assert first.audio is not None
    assert second.audio is not None
    assert first.audio.shape != second.audio.shape or not torch.allclose(first.audio, second.audio)


def test_a_stop_string_ends_text_and_speech(omni: Omni):
    free = omni.generate(QUESTION, sampling=FREE, stream=False)
    stop = free.text[len(free.text) // 2 :][:5]
    thinker = SamplingParams(seed=3, temperature=1.0, max_tokens=16, stop=(stop,))
    result = omni.generate(QUESTION, sampling={"thinker": thinker, "talker": TALKER}, stream=False)
    assert result.text == free.text[: free.text.index(stop)]
    assert result.tokens == free.tokens[: len(result.tokens)]
    assert result.finish_reasons["thinker"] == "stop"
    assert result.audio is not None


def test_a_form_is_kept_and_spoken(omni: Omni):
    thinker = SamplingParams(seed=3, max_tokens=240, structured=StructuredOutput(json=SCHEMA), logprobs=1)
    result = omni.generate(QUESTION, sampling={"thinker": thinker, "talker": TALKER}, stream=False)
    assert json.loads(result.text)["sides"] in (3, 4)
    assert [one.id for one in result.logprobs] == list(result.tokens)
    assert result.audio is not None


@pytest.mark.parametrize("fields", [{"stop": ("a",)}, {"bad_words": ("a",)}, {"logprobs": 1}])
def test_what_is_about_a_text_is_not_for_the_talker(omni: Omni, fields: dict[str, object]):
    with pytest.raises(InputError, match="is about the text"):
        omni.generate(QUESTION, sampling={"talker": SamplingParams(**fields)})  # type: ignore[arg-type]
