"""Sampling parameters as users give them: refusals with the field's name, stop strings, log-probabilities."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni import AsyncOmni, InputError, Omni, SamplingParams
from omni.api.request_output import RequestOutput
from omni.api.results import TokenLogprob
from omni.engine import StageFinished, StageOutput
from omni.errors import ConfigError
from omni.payload import GeneratedTokens, LogprobsChunk
from omni.sampling import StructuredOutput
from tests.support.echo_family import CharacterDecoder
from tests.support.echo_omni import coroutine, opened

OF_TEXTS: dict[str, Any] = {"bad_words": ("x",), "structured": StructuredOutput(regex="x"), "logprobs": 0}
AT_ONCE: dict[str, tuple[Any, str, str]] = {
    "id out of the vocabulary": (
        SamplingParams(stop_token_ids=(10**6,)),
        "sampling.stop_token_ids",
        "1000000 is not a letter",
    ),
    "stop of the singer": (
        {"singer": SamplingParams(stop=("x",))},
        "sampling.singer.stop",
        "is about the text, which stage 'singer' does not write; give it for stage 'writer'",
    ),
    **{
        f"{name} of the singer": (
            {"singer": SamplingParams(**{name: value})},
            f"sampling.singer.{name}",
            "is about the text",
        )
        for name, value in OF_TEXTS.items()
    },
    "a stage that does not sample": (
        {"singer": SamplingParams(top_k=3)},
        "sampling.singer.top_k",
        "stage 'singer' does not sample; leave it out",
    ),
    "two forms": (
        SamplingParams(structured=StructuredOutput(regex="a", choice=("b",))),
        "sampling.structured",
        "gives regex, choice; give exactly one",
    ),
    "choice of numbers": (
        SamplingParams(structured=StructuredOutput(choice=(1, 2))),  # type: ignore[arg-type]
        "sampling.structured.choice[0]",
        "Expected `str`, got `int`",
    ),
    "many bad words": (SamplingParams(bad_words=("x",) * 129), "sampling.bad_words", "use at most 128"),
    "no text": (SamplingParams(stop=3), "sampling.stop", "got `int`"),  # type: ignore[arg-type]
    "form": (
        {"writer": SamplingParams(structured=StructuredOutput(regex="a("))},
        "sampling.writer.structured.regex",
        "does not compile",
    ),
    "stop": (SamplingParams(stop=("a\ud800",)), "sampling.stop", "is not valid Unicode"),
    "bad word": (SamplingParams(bad_words=("a\ud800",)), "sampling.bad_words", "is not valid Unicode"),
    "long stop": (SamplingParams(stop=("a" * 4097,)), "sampling.stop", "are more than 4096 bytes in all"),
}


@pytest.mark.parametrize("kind", AT_ONCE)
def test_refused_at_once(omni: Omni, kind: str):
    sampling, field, words = AT_ONCE[kind]
    with pytest.raises(InputError) as caught:
        omni.generate("hello", sampling=sampling)
    assert caught.value.field == field
    assert words in str(caught.value)


def test_other_requests_run_beside_refused_ones(omni: Omni):
    results = omni.generate(["hello", "there"], stream=False)
    for sampling, _, _ in AT_ONCE.values():
        with pytest.raises(InputError):
            omni.generate("hello", sampling=sampling, n=2, stream=False)
    assert [result.text for result in results] == ["hello", "there"]
    assert omni.generate("hello", stream=False).text == "hello"


@coroutine
async def test_coroutines_get_errors_of_grammars_where_they_read(omni: AsyncOmni) -> None:
    """Compiling may take seconds, which an event loop has not."""
    outputs = omni.generate("hello", sampling=SamplingParams(structured=StructuredOutput(regex="a(")))
    with pytest.raises(InputError, match=r"sampling.structured.regex: does not compile"):
        await anext(outputs)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("singer.sampling.stop", '["x"]', "singer.sampling.stop: is about the text"),
        ("singer.sampling.logprobs", "1", "singer.sampling.logprobs: is about the text"),
        ("writer.sampling.structured", '{"regex": "a("}', "writer.sampling.structured.regex: does not compile"),
        ("writer.sampling.structured", '{"regex": "a", "regx": "b"}', "unknown field `regx`"),
        ("writer.sampling.nonsense", "1", "there is no option 'nonsense'"),
    ],
)
def test_settings_are_refused_at_the_start(model: Any, path: str, value: str, words: str):
    with pytest.raises(ConfigError) as caught:
        opened(model, **{path: value})
    assert words in str(caught.value)


TEXT = "One. Two: ENd END of it"


@pytest.mark.parametrize(
    ("stop", "min_tokens", "text"),
    [
        (("END",), None, "One. Two: ENd "),
        (("of", "ENd"), None, "One. Two: "),
        (("d E", "END"), None, "One. Two: EN"),
        ((".",), None, "One"),
        (("One. T",), None, ""),
        (("e", "n"), 4, "One. Two: ENd END of it"),
        ((" ",), 6, "One. Two:"),
        (("never",), None, TEXT),
        (("it!", "t "), None, TEXT),
        (("it",), None, TEXT.removesuffix("it")),
    ],
)
def test_a_text_ends_before_its_stop_string(omni: Omni, stop: tuple[str, ...], min_tokens: int | None, text: str):
    sampling = SamplingParams(stop=stop, min_tokens=min_tokens)
    result = omni.generate(TEXT, sampling=sampling, stream=False)
    assert result.text == text
    assert result.finish_reasons["writer"] == "stop"
    # All that was generated, that of the stop string too.
    said = "".join(map(chr, result.tokens))
    assert said.startswith(text)
    assert len(said) == result.usage.tokens["writer"]
    assert any(said.endswith(one) for one in stop) or said == TEXT
    pieces = [output.text for output in omni.generate(TEXT, sampling=sampling)]
    assert "".join(pieces) == text


def test_speech_ends_before_the_stop_string(omni: Omni):
    whole = omni.generate("ab stop cd", stream=False)
    cut = omni.generate("ab stop cd", sampling=SamplingParams(stop=("stop",)), stream=False)
    assert whole.audio is not None
    assert cut.audio is not None
    assert len(cut.audio) * len("ab stop cd") == len(whole.audio) * len("ab ")
    assert cut.text == "ab "


def test_several_byte_letters(omni: Omni):
    result = omni.generate("Größe über alles", sampling=SamplingParams(stop=("üb",)), stream=False)
    assert result.text == "Größe "


def test_a_stop_string_of_the_settings(model: Path):
    with opened(model, **{"writer.sampling.stop": '["Two"]'}) as omni:
        assert omni.generate(TEXT, stream=False).text == "One. "
        assert omni.generate(TEXT, sampling=SamplingParams(stop=("of",)), stream=False).text == "One. Two: ENd END "
        assert omni.generate(TEXT, sampling=SamplingParams(stop=()), stream=False).text == TEXT


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


def test_log_probabilities_are_absent_unless_requested(omni: Omni):
    result = omni.generate("hello", stream=False)
    assert (result.logprobs, result.prompt_logprobs) == ((), ())


def test_log_probabilities_of_the_prompt_are_separate():
    answer = RequestOutput(0, 0, CharacterDecoder(), "writer", keep=True)
    ids, scores = np.array([[5, 9, 5], [6, 6, 9]]), np.array([[-1.5, -0.5, -1.5], [-0.25, -0.25, -2]], np.float32)
    chunk = LogprobsChunk(first=1, ids=ids, logprobs=scores, ranks=np.array([2, 1]), prompt=True)
    output = answer.take(0.0, StageOutput("text", chunk))
    assert output is not None
    asked = (TokenLogprob(5, -1.5, 2, {9: -0.5, 5: -1.5}), TokenLogprob(6, -0.25, 1, {6: -0.25, 9: -2.0}))
    assert (output.prompt_logprobs, output.logprobs) == (asked, ())
    answer.take(0.0, StageOutput("text", GeneratedTokens(ids=(65, 66))))
    answer.take(0.0, StageFinished("writer", "stop", {"tokens": 3}, withheld=(67,)))
    result = answer.result()
    assert (result.prompt_logprobs, result.logprobs, result.tokens) == (asked, (), (65, 66, 67))
    assert result.text == "ABC"
