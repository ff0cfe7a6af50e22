"""Structured outputs and refused sampling, from the chat to the answer, on a tiny checkpoint with a tokenizer."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from omni import InputError, Omni, SamplingParams
from omni.sampling import StructuredOutput
from tests.support.tiny_text import END, write_chat_model

QUESTIONS = ["What is a circle?", "The blue square and the green one", "Hello there, hello world, how are you?"]
SCHEMA = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "green", "blue"]}, "sides": {"type": "integer", "maximum": 9}},
    "required": ["color", "sides"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("chat") / "model")


@pytest.fixture(scope="module")
def omni(folder: Path) -> Iterator[Omni]:
    with Omni(folder, device="cpu") as omni:
        yield omni


def with_fields(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"seed": 11, "max_tokens": 40, **fields})


FORMS: dict[str, tuple[StructuredOutput, Callable[[str], object]]] = {
    "json": (StructuredOutput(json=SCHEMA), lambda text: json.loads(text)["color"] in ("red", "green", "blue")),
    "regex": (StructuredOutput(regex="[a-z]{3,9} (is|are)[.!]"), re.compile("[a-z]{3,9} (is|are)[.!]").fullmatch),
    "choice": (
        StructuredOutput(choice=("circle", "square", "two words")),
        ("circle", "square", "two words").__contains__,
    ),
    "grammar": (
        StructuredOutput(grammar='root ::= ("red" | "blue") (", " root)?'),
        re.compile("(red|blue)(, (red|blue))*").fullmatch,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_structured_texts_have_their_form(omni: Omni, form: str):
    structured, has_form = FORMS[form]
    sampling = [with_fields(structured=structured, seed=seed, max_tokens=200) for seed in range(2)]
    for one in sampling:
        results = omni.generate(QUESTIONS, sampling=one, n=2, stream=False)
        for result in [each for first in results for each in (first, *first.alternatives)]:
            assert result.error is None
            assert result.finish_reasons == {"text": "stop"}
            assert has_form(result.text), result.text


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"logit_bias": {10**6: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": (10**6,)}, "allowed_token_ids"),
        ({"bad_words_ids": ((10**6,),)}, "bad_words_ids"),
        ({"processors": {"unknown": {}}}, "processors"),
    ],
)
def test_unsupported_sampling_is_refused_at_once(omni: Omni, fields: dict[str, Any], field: str):
    with pytest.raises(InputError) as caught:
        omni.generate(QUESTIONS[0], sampling=SamplingParams(**fields))
    assert caught.value.field.startswith(f"sampling.{field}")


def test_the_end_token_is_drawn_where_a_grammar_may_end(omni: Omni, folder: Path):
    end = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(END)
    structured = StructuredOutput(regex="[a-z ]{4,}")
    ended = []
    for seed in range(12):
        sampling = with_fields(structured=structured, seed=seed, max_tokens=120, logit_bias={end: 6.0})
        result = omni.generate(QUESTIONS[0], sampling=sampling, stream=False)
        assert re.fullmatch("[a-z ]{4,}", result.text)
        ended.append(result.tokens[-1] == end)
    assert any(ended)
