"""What is refused at submission, and under which name."""

from typing import Any

import pytest

from omni import AsyncOmni, InputError, Omni, SamplingParams
from omni.errors import ConfigError
from omni.sampling import StructuredOutput
from tests.support.echo_omni import coroutine, opened

OF_TEXTS: dict[str, Any] = {"bad_words": ("x",), "structured": StructuredOutput(regex="x"), "logprobs": 0}
AT_ONCE: dict[str, tuple[Any, str, str]] = {
    "id out of the vocabulary": (
        SamplingParams(stop_token_ids=(10**6,)),
        "sampling.stop_token_ids",
        "1000000 is no letter",
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


def test_others_are_answered_meanwhile(omni: Omni):
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
