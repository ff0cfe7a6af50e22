"""From a request's sampling parameters to those of its sampler, and refusals."""

import msgspec
import pytest

from omni.errors import InputError
from omni.sampling import GREEDY, SamplingParams, StructuredOutput
from omni_ar.processors import ProcessorRegistry
from omni_ar.sampling.resolve import check_sampling, resolve_sampling

VOCAB = 40
NONE = ProcessorRegistry({}, VOCAB)
OWN = SamplingParams(temperature=0.5, max_tokens=20, stop_token_ids=(7,), suppress_token_ids=(8, 9), top_k=4)


def resolve(own=OWN, **asked):
    return resolve_sampling(SamplingParams(**asked), own, "text", VOCAB)


def refusal(own=OWN, **asked):
    """The error of both: at submission, and where the request is opened."""
    with pytest.raises(InputError) as opened:
        resolve(own, **asked)
    with pytest.raises(InputError) as submitted:
        check_sampling(SamplingParams(**asked), own, "sampling.text", VOCAB, NONE)
    assert str(opened.value) == str(submitted.value)
    return str(opened.value)


def test_request_parameters_override_the_stage_defaults():
    sampling = resolve(temperature=0.9, seed=5)
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens, sampling.seed) == (0.9, 4, 20, 5)


def test_every_field_is_set_but_those_that_none_turns_off():
    unset = {name for name, value in msgspec.structs.asdict(resolve(SamplingParams())).items() if value is None}
    assert unset == {"allowed_token_ids", "logprobs", "prompt_logprobs", "structured"}
    assert {n: v for n, v in msgspec.structs.asdict(resolve(SamplingParams(), seed=1)).items() if n != "seed"} == {
        n: v for n, v in (msgspec.structs.asdict(GREEDY) | {"code_temperature": 0.0}).items() if n != "seed"
    }


@pytest.mark.parametrize(
    ("asked", "temperature"),
    [
        ({}, 0.8),
        ({"temperature": 1.5}, 0.8),
        ({"temperature": 0.0}, 0.0),
        ({"temperature": 0.0, "code_top_k": 9}, 0.0),
        ({"temperature": 0.0, "code_temperature": 1.2}, 1.2),
        ({"code_temperature": 0.0}, 0.0),
    ],
)
def test_the_codes_of_a_greedy_token_are_greedy_unless_asked_otherwise(asked: dict[str, float], temperature: float):
    own = msgspec.structs.replace(OWN, code_temperature=0.8, code_top_k=50, code_top_p=0.9)
    sampling = resolve(own, **asked)
    assert sampling.code_temperature == temperature
    assert (sampling.code_top_k, sampling.code_top_p) == (asked.get("code_top_k", 50), 0.9)


def test_a_seed_is_drawn_where_none_is_given():
    assert resolve(seed=0).seed == 0
    drawn = {resolve().seed for _ in range(200)}
    assert len(drawn) == 200
    assert all(0 <= seed < 2**63 for seed in drawn)
    assert max(drawn) >= 2**62, "no bit is left out"


def test_ids_are_added_to_the_stages_own():
    sampling = resolve(stop_token_ids=(1, 7), suppress_token_ids=(9, 3))
    assert (sampling.stop_token_ids, sampling.suppress_token_ids) == ((7, 1), (8, 9, 3))


def test_ignore_eos_drops_the_stages_own_stop_ids_and_no_others():
    assert resolve(ignore_eos=True).stop_token_ids == ()
    assert resolve(ignore_eos=True, stop_token_ids=(1, 7)).stop_token_ids == (1, 7)
    own = msgspec.structs.replace(OWN, ignore_eos=True)
    assert resolve(own).stop_token_ids == ()
    assert resolve(own, ignore_eos=False).stop_token_ids == (7,)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"stop_token_ids": (40,)}, "stop_token_ids: 40 is not in the vocabulary; use ids below 40"),
        ({"suppress_token_ids": (1, 99)}, "suppress_token_ids: 99 is not in"),
        ({"allowed_token_ids": (1, 41)}, "allowed_token_ids: 41 is not in"),
        ({"logit_bias": {3: 1.0, 40: 1.0}}, "logit_bias: 40 is not in"),
        ({"bad_words_ids": ((1, 2), (3, 50, 1))}, "bad_words_ids: 50 is not in"),
        (
            {"stop_token_ids": tuple(range(8, 24))},
            "stop_token_ids: are 17 ids, the stage's own included; use at most 16 in all",
        ),
        ({"bad_words_ids": ((1,),) * 257}, "bad_words_ids: are 257 words; use at most 256"),
        ({"bad_words_ids": ((1,) * 17,)}, "bad_words_ids: have a word of 17 ids; use at most 16"),
        ({"bad_words": ("no",)}, "bad_words: are texts, and this stage supports ids only; use bad_words_ids"),
        ({"min_tokens": 21}, "min_tokens: 21 is more than max_tokens, 20; lower it or raise max_tokens"),
        ({"allowed_token_ids": (8, 9)}, "allowed_token_ids: are all suppressed too"),
        ({"suppress_token_ids": tuple(range(40))}, "suppress_token_ids: leave no possible token"),
        ({"allowed_token_ids": (1, 2), "bad_words_ids": ((1,), (2,))}, "bad_words_ids: leave no possible token"),
        ({"bad_words_ids": tuple((i,) for i in range(40))}, "bad_words_ids: leave no possible token"),
        ({"allowed_token_ids": (7, 8), "min_tokens": 1}, "min_tokens: 1 leaves no possible token before it"),
    ],
)
def test_impossible_sampling_is_refused(asked, message):
    assert refusal(**asked).startswith(f"sampling.text.{message}")


def test_more_biases_than_a_row_holds():
    asked = SamplingParams(logit_bias=dict.fromkeys(range(1025), 1.0))
    with pytest.raises(InputError, match=r"sampling.text.logit_bias: names 1025 ids; use at most 1024 ids"):
        resolve_sampling(asked, GREEDY, "text", 2000)


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_no_more_likeliest_ids_than_there_are(field):
    most, more = (msgspec.structs.replace(SamplingParams(), **{field: count}) for count in (4, 5))
    assert resolve_sampling(most, GREEDY, "codes", 4)
    with pytest.raises(InputError, match=f"sampling.codes.{field}: 5 is more than the vocabulary has; use at most 4"):
        resolve_sampling(more, GREEDY, "codes", 4)


def test_bounds_themselves_are_fine():
    assert resolve(
        stop_token_ids=tuple(range(8, 23)),
        bad_words_ids=((1,) * 16,) * 256,
        min_tokens=20,
        suppress_token_ids=tuple(range(8, 40)),
        allowed_token_ids=(1, 8),
    )


def test_stop_strings_and_grammars_pass_the_check_of_a_stage():
    assert resolve(stop=("end",), structured=StructuredOutput(regex="a+"))
    check_sampling(SamplingParams(stop=("end",)), OWN, "sampling.text", VOCAB, NONE)


def test_unknown_processors_are_refused_at_submission():
    with pytest.raises(InputError, match=r"sampling.text.processors.loud: is not a logits processor"):
        check_sampling(SamplingParams(processors={"loud": {}}), OWN, "sampling.text", VOCAB, NONE)
