"""The parameters that the matrix asks for, made so that each of them changes what a model says."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from omni.frontend.vocabulary import Vocabulary
from omni.sampling import SamplingParams, StructuredOutput

TOKENS = 16
FORM_TOKENS = 36
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "blue"]}, "sides": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["color", "sides"],
    "additionalProperties": False,
}

GREEDY, SEEDED, HOT = "greedy", "seeded", "seeded, hot"
SAMPLED: Mapping[str, Any] = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "seed": 5}
SETS = (
    GREEDY,
    SEEDED,
    HOT,
    "repetition penalty",
    "presence penalty",
    "frequency penalty",
    "bad words",
    "logprobs",
    "prompt logprobs",
    "min_tokens",
    "stop string",
    "JSON schema",
    "JSON schema, penalty, logprobs",
    "host processor",
    "all together",
)
"""The names of the parameters."""
PLAYED = tuple(name for name in SETS if name != HOT)
"""What the matrix's cells ask for. The other one is there to be compared with."""
AGAINST = {"JSON schema": HOT, "JSON schema, penalty, logprobs": "JSON schema"}
"""What the others of these parameters are compared with, where that is not `GREEDY`."""
SAYS_THE_SAME = frozenset({"logprobs", "prompt logprobs"})
"""They add outputs; the tokens stay."""


def text_sets(say: Callable[[SamplingParams], list[list[int]]], vocabulary: Vocabulary) -> dict[str, SamplingParams]:
    """By name. say: answers to the prompts that will be asked."""
    plain = SamplingParams(temperature=0.0, max_tokens=TOKENS)
    said = say(plain)
    early = tuple(dict.fromkeys(one[3] for one in said))
    late = [one[11] for one in say(msgspec.structs.replace(plain, suppress_token_ids=early))]
    # White space may stand anywhere in JSON; without it a text ends soon.
    blanks = [token for token, text in enumerate(vocabulary.tokens) if text and not text.strip()]
    hot = {"temperature": 0.6, "seed": 3, "max_tokens": FORM_TOKENS, "logit_bias": dict.fromkeys(blanks, -100.0)}
    form = {**hot, "structured": StructuredOutput(json=SCHEMA)}
    fields: dict[str, Mapping[str, Any]] = {
        GREEDY: {},
        SEEDED: SAMPLED,
        HOT: hot,
        "repetition penalty": {"repetition_penalty": 1.4},
        "presence penalty": {"presence_penalty": 1.8},
        "frequency penalty": {"frequency_penalty": 1.6},
        "bad words": {
            "bad_words": tuple(dict.fromkeys(_words(said, vocabulary))),
            "bad_words_ids": tuple((one[2], one[3]) for one in said),
        },
        "logprobs": {"logprobs": 3},
        "prompt logprobs": {"prompt_logprobs": 2},
        "min_tokens": {"min_tokens": 9, "stop_token_ids": tuple(dict.fromkeys((*early, *late)))},
        "stop string": {"stop": tuple(dict.fromkeys(_stops(said[1:], vocabulary)))},
        "JSON schema": form,
        "JSON schema, penalty, logprobs": {**form, "frequency_penalty": 1.5, "repetition_penalty": 1.2, "logprobs": 2},
        "host processor": {"processors": {"no_repeat": {"size": 1}}},
        "all together": {
            **SAMPLED,
            "min_p": 0.01,
            "top_n_sigma": 3.0,
            "repetition_penalty": 1.2,
            "frequency_penalty": 0.5,
            "presence_penalty": -0.5,
            "logit_bias": {said[0][1]: -3.0, said[-1][2]: 2.5},
            "logprobs": 1,
            "processors": {"no_repeat": {"size": 2}},
        },
    }
    assert tuple(fields) == SETS
    return {name: msgspec.structs.replace(plain, **changes) for name, changes in fields.items()}


def _words(said: Sequence[Sequence[int]], vocabulary: Vocabulary) -> Iterator[str]:
    """Of each answer, one token that is a word to the tokenizer."""
    for answer in said:
        for token in answer[1:]:
            text = vocabulary.written(token).decode(errors="replace").removeprefix(" ")
            if (token,) in {tuple(vocabulary.encode(text)), tuple(vocabulary.encode(f" {text}"))}:
                yield text
                break


def _stops(said: Sequence[Sequence[int]], vocabulary: Vocabulary) -> Iterator[str]:
    """Of each answer, a text that begins in one token and ends in the next."""
    for answer in said:
        written = [vocabulary.written(token) for token in answer]
        for before, after in itertools.pairwise(written[9:]):
            seam = before[-2:] + after[:3]
            if before and after and seam.isascii():
                yield seam.decode()
                break
