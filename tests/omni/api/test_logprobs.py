"""Log-probabilities as users get them, on a family that says of its tokens what is easy to check."""

import numpy as np
import pytest

from omni import Omni, SamplingParams
from omni.api.request_output import RequestOutput
from omni.api.results import TokenLogprob
from omni.engine import StageFinished, StageOutput
from omni.payload import GeneratedTokens, TokenLogprobs
from tests.support.echo_family import CharacterDecoder


def expected(text: str, top: int) -> list[TokenLogprob]:
    likeliest = {i: -float(i) for i in range(top)}
    return [TokenLogprob(ord(letter), -float(place), place + 1, likeliest) for place, letter in enumerate(text)]


@pytest.mark.parametrize("top", [0, 2])
def test_every_token_has_one(omni: Omni, top: int):
    result = omni.generate("hello", sampling=SamplingParams(logprobs=top), stream=False)
    assert result.tokens == tuple(map(ord, "hello"))
    assert list(result.logprobs) == expected("hello", top)
    assert result.prompt_logprobs == ()


def test_streamed_ones_come_in_order_each_once(omni: Omni):
    outputs = list(omni.generate("hello", sampling=SamplingParams(logprobs=1)))
    assert [one for output in outputs for one in output.logprobs] == expected("hello", 1)


def test_tokens_of_a_stop_string_have_one_too(omni: Omni):
    result = omni.generate("hello", sampling=SamplingParams(logprobs=0, stop=("ll",)), stream=False)
    assert result.text == "he"
    assert list(result.logprobs) == expected("hell", 0)
    assert len(result.tokens) == len(result.logprobs)


def test_none_unless_asked_for(omni: Omni):
    result = omni.generate("hello", stream=False)
    assert (result.logprobs, result.prompt_logprobs) == ((), ())


def test_log_probabilities_of_the_prompt_are_separate():
    answer = RequestOutput(0, 0, CharacterDecoder(), "writer", keep=True)
    ids, scores = np.array([[5, 9, 5], [6, 6, 9]]), np.array([[-1.5, -0.5, -1.5], [-0.25, -0.25, -2]], np.float32)
    chunk = TokenLogprobs(first=1, ids=ids, logprobs=scores, ranks=np.array([2, 1]), prompt=True)
    output = answer.take(0.0, StageOutput("text", chunk))
    assert output is not None
    asked = (TokenLogprob(5, -1.5, 2, {9: -0.5, 5: -1.5}), TokenLogprob(6, -0.25, 1, {6: -0.25, 9: -2.0}))
    assert (output.prompt_logprobs, output.logprobs) == (asked, ())
    answer.take(0.0, StageOutput("text", GeneratedTokens(ids=(65, 66))))
    answer.take(0.0, StageFinished("writer", "stop", {"tokens": 3}, held=(67,)))
    result = answer.result()
    assert (result.prompt_logprobs, result.logprobs, result.tokens) == (asked, (), (65, 66, 67))
    assert result.text == "ABC"
