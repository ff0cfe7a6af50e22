"""What is refused at submission, and under which name."""

from collections.abc import Iterator
from typing import Any

import pytest

from omni import InputError, Omni, SamplingParams
from omni.errors import ConfigError
from omni.sampling_params import StructuredOutput
from support.echo_omni import echo_model, echo_plugins


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return echo_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def omni(model: Any) -> Iterator[Omni]:
    with Omni(model, device="cpu", plugins=echo_plugins()) as omni:
        yield omni


AT_ONCE: dict[str, tuple[Any, str, str]] = {
    "id out of the vocabulary": (
        SamplingParams(stop_token_ids=(10**6,)),
        "sampling.stop_token_ids",
        "1000000 is no letter",
    ),
    "of a stage": (
        {"writer": SamplingParams(stop_token_ids=(10**6,))},
        "sampling.writer.stop_token_ids",
        "1000000 is no letter",
    ),
    "stop of the singer": (
        {"singer": SamplingParams(stop=("x",))},
        "sampling.singer.stop",
        "is about the text, which stage 'singer' does not write; give it for stage 'writer'",
    ),
    "bad words of the singer": (
        {"singer": SamplingParams(bad_words=("x",))},
        "sampling.singer.bad_words",
        "is about the text",
    ),
    "form of the singer": (
        {"singer": SamplingParams(structured=StructuredOutput(regex="x"))},
        "sampling.singer.structured",
        "is about the text",
    ),
    "log-probabilities of the singer": (
        {"singer": SamplingParams(logprobs=0)},
        "sampling.singer.logprobs",
        "is about the text",
    ),
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
    "no tuple": (SamplingParams(stop="x"), "sampling.stop", "Expected `array | null`, got `str`"),  # type: ignore[arg-type]
}
LATER: dict[str, tuple[Any, str, str]] = {
    "form": (
        {"writer": SamplingParams(structured=StructuredOutput(regex="a("))},
        "sampling.writer.structured.regex",
        "does not compile",
    ),
    "form of the text stage": (
        SamplingParams(structured=StructuredOutput(json={"type": "thing"})),
        "sampling.structured.json",
        "Invalid type: thing",
    ),
    "stop": (SamplingParams(stop=("a\ud800",)), "sampling.stop", "is no valid Unicode"),
    "bad word": (SamplingParams(bad_words=("a\ud800",)), "sampling.bad_words", "is no valid Unicode"),
    "long stop": (SamplingParams(stop=("a" * 4097,)), "sampling.stop", "are more than 4096 bytes in all"),
}


@pytest.mark.parametrize("kind", AT_ONCE)
def test_refused_at_once(omni: Omni, kind: str):
    sampling, field, words = AT_ONCE[kind]
    with pytest.raises(InputError) as caught:
        omni.generate("hello", sampling=sampling)
    assert caught.value.field == field
    assert words in str(caught.value)


@pytest.mark.parametrize("kind", LATER)
def test_refused_where_it_is_read(omni: Omni, kind: str):
    sampling, field, words = LATER[kind]
    for n in (1, 2):
        with pytest.raises(InputError) as caught:
            omni.generate("hello", sampling=sampling, n=n, stream=False)
        assert caught.value.field == field
        assert words in str(caught.value)
    assert omni.generate("hello", stream=False).text == "hello"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("singer.sampling.stop", '["x"]', "singer.sampling.stop: is about the text"),
        ("singer.sampling.logprobs", "1", "singer.sampling.logprobs: is about the text"),
        ("writer.sampling.nonsense", "1", "there is no option 'nonsense'"),
    ],
)
def test_settings_are_refused_at_the_start(model: Any, path: str, value: str, words: str):
    with pytest.raises(ConfigError) as caught:
        Omni(model, device="cpu", plugins=echo_plugins(), overrides={path: value})
    assert words in str(caught.value)
