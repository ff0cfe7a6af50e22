"""From texts in sampling parameters to ids and rules."""

import pytest

from omni.errors import InputError
from omni.frontend.compile import SamplingCompiler
from omni.frontend.vocabulary import Vocabulary
from omni.pipeline import Pipeline, PipelineOutput, Stage
from omni.sampling import GREEDY, SamplingParams, StopVerdict, StructuredOutput
from omni_ar.options import ArOptions

END = 256
BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), b""))


def compiler(vocabulary: Vocabulary | None = BYTES, **defaults: object) -> SamplingCompiler:
    own = SamplingParams(stop_token_ids=(END,), **defaults).with_defaults(GREEDY)  # type: ignore[arg-type]
    stages = (
        Stage(name="writer", kind="ar", model="m:m", options=ArOptions(sampling=own)),
        Stage(name="talker", kind="ar", model="m:m", options=ArOptions()),
    )
    outputs = (PipelineOutput(modality="text", stage="writer"),)
    return SamplingCompiler(Pipeline(family="f", stages=stages, outputs=outputs, frontend="m:m"), "writer", vocabulary)


def test_sampling_given_in_ids_is_unchanged():
    asked = {"writer": SamplingParams(top_k=3, bad_words_ids=((1,),)), "talker": SamplingParams(seed=2)}
    compiled = compiler().compile(asked, {"writer": "sampling.writer", "talker": "sampling.talker"})
    assert compiled.sampling == asked
    assert compiled.rules == {}
    assert compiled.after_stop([1, 2]) == ""


def test_bad_words_become_ids_as_they_begin_and_as_they_follow():
    asked = {"writer": SamplingParams(bad_words=("ab", "c"), bad_words_ids=((7, 8), (99,)))}
    params = compiler().compile(asked, {"writer": "sampling"}).sampling["writer"]
    assert params.bad_words == ()
    assert params.bad_words_ids == ((7, 8), (99,), (97, 98), (32, 97, 98), (32, 99))


def test_each_sample_has_rules_of_its_own():
    asked = {"writer": SamplingParams(stop=("ab",), structured=StructuredOutput(regex="a+b"))}
    own = compiler()
    compiled = own.compile(asked, {"writer": "sampling"})
    assert compiled.sampling["writer"].stop == ()
    first, second = own.host_rules(compiled)["writer"], own.host_rules(compiled)["writer"]
    assert first.stops is not None
    assert second.stops is not None
    assert [first.stops.push(97), first.stops.push(98)] == [StopVerdict(1, False), StopVerdict(2, True)]
    assert second.stops.push(98) == StopVerdict(0, False)
    assert [first.host_processors[0].push(97), first.host_processors[0].push(98)] == [False, True]
    assert second.host_processors[0].push(97) is False
    assert compiled.after_stop([120, 97, 98, 121]) == ""  # it ended in the last token
    assert compiled.after_stop([120, 97, 98]) == "ab"


def test_a_stages_own_settings_are_texts_too():
    own = compiler(stop=("x",), bad_words=("y",), structured=StructuredOutput(choice=("a",)))
    compiled = own.compile({}, {})
    assert compiled.rules["writer"].stop == ("x",)
    assert compiled.rules["writer"].structured == StructuredOutput(choice=("a",))
    assert compiled.sampling["writer"].bad_words_ids == ((121,), (32, 121))
    asked = {"writer": SamplingParams(stop=(), bad_words=())}
    compiled = own.compile(asked, {"writer": "sampling"})
    assert own.host_rules(compiled)["writer"].stops is None
    assert compiled.sampling["writer"].bad_words_ids == ()


@pytest.mark.parametrize(
    ("fields", "ends"),
    [({}, {END}), ({"stop_token_ids": (10,)}, {END, 10}), ({"ignore_eos": True, "stop_token_ids": (10,)}, {10})],
)
def test_the_ids_that_end_a_structured_text(fields: dict[str, object], ends: set[int]):
    asked = SamplingParams(structured=StructuredOutput(regex="a*"), **fields)  # type: ignore[arg-type]
    own = compiler()
    rules = own.host_rules(own.compile({"writer": asked}, {"writer": "sampling"}))["writer"]
    processor = rules.host_processors[0]
    allowed = processor.edit().allowed
    assert allowed is not None
    assert {i for i in range(64 * len(allowed)) if int(allowed[i // 64]) >> i % 64 & 1} == {97, *ends}


def test_several_samples_share_a_seed():
    asked = {"talker": SamplingParams(seed=5)}
    sampling = compiler().compile(asked, {"talker": "sampling.talker"}, samples=2).sampling
    assert sampling["talker"].seed == 5
    assert sampling["writer"].seed is not None
    other = compiler().compile(asked, {"talker": "sampling.talker"}, samples=2).sampling
    assert other["writer"].seed != sampling["writer"].seed
    assert compiler(seed=9).compile({}, {}, samples=2).sampling["writer"].seed is None


@pytest.mark.parametrize("name", ["stop", "bad_words", "structured"])
def test_without_a_vocabulary_texts_are_refused(name: str):
    value = StructuredOutput(regex="a") if name == "structured" else ("a",)
    asked = {"writer": SamplingParams(**{name: value})}  # type: ignore[arg-type]
    with pytest.raises(InputError) as caught:
        compiler(None).check(asked, {"writer": "sampling"})
    assert caught.value.field == f"sampling.{name}"
    compiler(None).check({"writer": SamplingParams(logprobs=2, stop_token_ids=(3,))}, {"writer": "sampling"})
