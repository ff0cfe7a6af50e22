"""What users ask of sampling, from the chat to the answer, on a tiny checkpoint with a tokenizer."""

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from omni import InputError, Omni, SamplingParams
from omni.sampling import StructuredOutput
from tests.support.tiny_text import END, write_chat_model

QUESTIONS = ["What is a circle?", "The blue square and the green one", "Hello there, hello world, how are you?"]
FREE = SamplingParams(seed=11, max_tokens=40)
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


@pytest.mark.parametrize("question", QUESTIONS)
def test_stop_strings_end_the_text_and_change_nothing_before(omni: Omni, question: str):
    free = omni.generate(question, sampling=FREE, stream=False)
    # Of what the model would say, texts that begin and end anywhere in its tokens; it says broken characters too.
    stops = [free.text[start : start + 4] for start in range(len(free.text) - 4)]
    for stop in [stop for stop in stops if "\ufffd" not in stop][3:30:9]:
        sampling = with_fields(stop=(stop, "never said"))
        result = omni.generate(question, sampling=sampling, stream=False)
        assert result.text == free.text[: free.text.index(stop)]
        assert result.finish_reasons == {"text": "stop"}
        assert result.tokens == free.tokens[: len(result.tokens)]
        pieces = [output.text for output in omni.generate(question, sampling=sampling)]
        assert "".join(pieces) == result.text


def test_min_tokens_go_over_stop_strings(omni: Omni):
    free = omni.generate(QUESTIONS[0], sampling=FREE, stream=False)
    stop = free.text[1]
    result = omni.generate(QUESTIONS[0], sampling=with_fields(stop=(stop,), min_tokens=10), stream=False)
    assert len(result.tokens) >= 10
    assert result.tokens[:9] == free.tokens[:9]


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
    sampling = [with_fields(structured=structured, seed=seed, max_tokens=200) for seed in range(3)]
    for one in sampling:
        results = omni.generate(QUESTIONS, sampling=one, n=2, stream=False)
        for result in [each for first in results for each in (first, *first.alternatives)]:
            assert result.error is None
            assert result.finish_reasons == {"text": "stop"}
            assert has_form(result.text), result.text


def test_others_are_not_changed_by_a_structured_one(omni: Omni):
    alone = omni.generate(QUESTIONS[1], sampling=FREE, stream=False)
    form = FORMS["json"][0]
    sampling = [with_fields(structured=form, seed=seed, max_tokens=200) for seed in range(4)]
    streams = [omni.generate(QUESTIONS[0], sampling=one) for one in sampling]
    beside = omni.generate(QUESTIONS[1], sampling=FREE, stream=False)
    texts = ["".join(output.text for output in stream) for stream in streams]
    assert beside.tokens == alone.tokens
    assert all(json.loads(text)["sides"] <= 9 for text in texts)


def test_bad_words_are_not_said(omni: Omni, folder: Path):
    free = omni.generate(QUESTIONS, sampling=FREE, stream=False)
    said = [word for result in free for word in re.findall("[a-z]{3,}", result.text)]
    assert said
    bad = tuple(dict.fromkeys(said))[:6]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    banned = {tuple(tokenizer.encode(text)) for word in bad for text in (word, f" {word}")}
    results = omni.generate(QUESTIONS, sampling=with_fields(bad_words=bad), stream=False)
    for result in results:
        spans = {result.tokens[i : i + len(ids)] for ids in banned for i in range(len(result.tokens))}
        assert not spans & banned
    assert [result.tokens for result in results] != [result.tokens for result in free]


def test_samples_are_those_of_their_seed(omni: Omni):
    first = omni.generate(QUESTIONS[0], sampling=FREE, n=3, stream=False)
    again = omni.generate(QUESTIONS[0], sampling=FREE, n=2, stream=False)
    alone = omni.generate(QUESTIONS[0], sampling=FREE, stream=False)
    samples = [first.tokens, *(one.tokens for one in first.alternatives)]
    assert len(set(samples)) == 3
    assert [again.tokens, again.alternatives[0].tokens] == samples[:2]
    assert alone.tokens == samples[0]
    drawn = omni.generate(QUESTIONS[0], sampling=SamplingParams(max_tokens=20), n=2, stream=False)
    assert drawn.tokens != drawn.alternatives[0].tokens


def test_logprobs_are_the_models(omni: Omni, folder: Path):
    sampling = with_fields(logprobs=3, prompt_logprobs=2, temperature=0.7, repetition_penalty=1.2, stop=("zzz",))
    result = omni.generate(QUESTIONS[2], sampling=sampling, stream=False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer(QUESTIONS[2])["input_ids"]
    with torch.no_grad():
        logits_TV = Qwen3ForCausalLM.from_pretrained(folder)(torch.tensor([[*prompt, *result.tokens]])).logits[0]
    expected_TV = logits_TV.double().log_softmax(-1)
    assert [one.id for one in result.logprobs] == list(result.tokens)
    assert [one.id for one in result.prompt_logprobs] == prompt[1:]
    everything = (*result.prompt_logprobs, *result.logprobs)
    for expected_V, one in zip(expected_TV, everything, strict=False):
        assert one.logprob == pytest.approx(expected_V[one.id].item(), abs=1e-4)
        assert one.rank == 1 + int((expected_V > expected_V[one.id]).sum())
        best = expected_V.topk(len(one.top))
        assert list(one.top) == best.indices.tolist()
        assert list(one.top.values()) == pytest.approx(best.values.tolist(), abs=1e-4)
        assert math.isfinite(one.logprob)
    assert {len(one.top) for one in result.logprobs} == {3}
    assert {len(one.top) for one in result.prompt_logprobs} == {2}


def test_a_form_and_penalties_and_logprobs_together(omni: Omni):
    sampling = with_fields(structured=FORMS["json"][0], frequency_penalty=0.5, logprobs=1, max_tokens=200)
    result = omni.generate(QUESTIONS[0], sampling=sampling, stream=False)
    assert json.loads(result.text)["sides"] <= 9
    assert [one.id for one in result.logprobs] == list(result.tokens)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"logit_bias": {10**6: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": (10**6,)}, "allowed_token_ids"),
        ({"bad_words_ids": ((10**6,),)}, "bad_words_ids"),
        ({"processors": {"nobody": {}}}, "processors"),
    ],
)
def test_what_the_stage_cannot_do_is_refused_at_once(omni: Omni, fields: dict[str, Any], field: str):
    with pytest.raises(InputError) as caught:
        omni.generate(QUESTIONS[0], sampling=SamplingParams(**fields))
    assert caught.value.field.startswith(f"sampling.{field}")


def test_the_end_is_said_where_a_form_may_end(omni: Omni, folder: Path):
    end = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(END)
    structured = StructuredOutput(regex="[a-z ]{4,}")
    ended = []
    for seed in range(12):
        sampling = with_fields(structured=structured, seed=seed, max_tokens=120, logit_bias={end: 6.0})
        result = omni.generate(QUESTIONS[0], sampling=sampling, stream=False)
        assert re.fullmatch("[a-z ]{4,}", result.text)
        ended.append(result.tokens[-1] == end)
    assert any(ended)
