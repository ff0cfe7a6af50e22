"""Sampling parameters as users write them, and their declarations."""

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from omni.config import SettingsLayer, overlay
from omni.engine import EngineOptions
from omni.errors import InputError
from omni.sampling import GREEDY, PARAMETERS, SamplingParams, StructuredOutput
from omni_ar.options import ArOptions
from omni_diffusion.options import DiffusionOptions
from omni_encoder.options import EncoderOptions
from omni_vocoder.options import VocoderOptions
from tests.support.entry_points import REPOSITORY

AS_READ = SamplingParams(stop=("a",), bad_words=("x",), top_k=0, code_top_k=0)
AS_WRITTEN: dict[str, Any] = {"stop": "a", "bad_words": "x", "top_k": -1, "code_top_k": -1}


@pytest.mark.parametrize(
    "make",
    [
        lambda: SamplingParams(**AS_WRITTEN),
        lambda: msgspec.convert(AS_WRITTEN, SamplingParams),
        lambda: msgspec.structs.replace(SamplingParams(), **AS_WRITTEN),
        lambda: SamplingParams().with_defaults(SamplingParams(**AS_WRITTEN)),
        lambda: pickle.loads(pickle.dumps(SamplingParams(**AS_WRITTEN))),
        lambda: copy.deepcopy(SamplingParams(**AS_WRITTEN)),
    ],
)
def test_a_plain_text_and_minus_one_are_read_as_meant(make: Callable[[], SamplingParams]) -> None:
    assert make() == AS_READ
    make().check("sampling")


@pytest.mark.parametrize(
    ("given", "read"), [("a", ("a",)), ('["a", "b"]', ("a", "b")), ('"["', ("[",)), ("none", None)]
)
def test_a_setting_may_be_a_plain_text(given: str, read: object) -> None:
    layer = SettingsLayer("--set", {"text.sampling.stop": given, "text.sampling.top_k": "-1"})
    options = overlay({"text": ArOptions()}, [layer])[0]["text"]
    assert isinstance(options, ArOptions)
    assert (options.sampling.stop, options.sampling.top_k) == (read, 0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda **fields: SamplingParams(**fields),
            r"SamplingParams.temprature: is not a field; did you mean temperature\?",
        ),
        (lambda **_: SamplingParams(max_token=3), r"max_token: is not a field; did you mean max_tokens\?"),  # type: ignore[call-arg]
        (lambda **_: StructuredOutput(jsn="{}"), r"StructuredOutput.jsn: is not a field; did you mean json\?"),  # type: ignore[call-arg]
        (lambda **_: SamplingParams(qqqq=1), r"SamplingParams.qqqq: is not a field; use one of max_tokens, "),  # type: ignore[call-arg]
        (lambda **_: SamplingParams(7), r"SamplingParams: gets 1 values without names; name fields"),  # type: ignore[call-arg]
        (lambda **_: SamplingParams(**{"x" * 9999: 1}), r"^SamplingParams.x{197}\.\.\.: is not a field"),  # type: ignore[arg-type]
    ],
)
def test_an_unknown_field_is_named_with_the_nearest(make: Callable[..., object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make(temprature=1)


@pytest.mark.parametrize(
    ("structured", "field"),
    [
        (StructuredOutput(regex="a\ud800"), "f.regex"),
        (StructuredOutput(json='{"const": "\udfff"}'), "f.json"),
        (StructuredOutput(grammar='root ::= "\ud800"'), "f.grammar"),
        (StructuredOutput(choice=("a", "\ud800")), "f.choice"),
    ],
)
def test_forms_are_unicode(structured: StructuredOutput, field: str) -> None:
    with pytest.raises(InputError, match=f"^{field}: is not valid Unicode: surrogates not allowed") as caught:
        structured.check("f")
    str(caught.value).encode()


def test_long_values_are_quoted_in_part() -> None:
    with pytest.raises(InputError, match="out of range") as caught:
        SamplingParams(allowed_token_ids=(-1,) * 100_000).check("f")
    assert len(str(caught.value)) < 400


def test_every_parameter_is_declared_and_its_fallback_is_in_range() -> None:
    assert tuple(PARAMETERS) == SamplingParams.__struct_fields__
    GREEDY.check("f")


def test_every_parameter_has_a_row_in_the_documentation() -> None:
    rows = re.findall(r"^\| (`[^|]*) \|", (REPOSITORY / "docs" / "sampling.md").read_text(), re.MULTILINE)
    assert {*SamplingParams.__struct_fields__} <= {name for row in rows for name in re.findall(r"`(\w+)`", row)}


KINDS = [ArOptions, DiffusionOptions, EncoderOptions, EngineOptions, SamplingParams, StructuredOutput, VocoderOptions]


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_field_is_refused_by_name(kind: type[msgspec.Struct]) -> None:
    assert msgspec.convert({}, kind) == kind()
    with pytest.raises(msgspec.ValidationError, match="unknown field `nonsense`"):
        msgspec.convert({"nonsense": 1}, kind)
    with pytest.raises(msgspec.ValidationError, match="unknown field `nonsense`"):
        msgspec.json.decode(b'{"nonsense": 1}', type=kind)


@pytest.mark.parametrize("field", ["regx", "json_schema", "guided_regex"])
def test_structured_output_refuses_unknown_fields(field: str) -> None:
    given = {"structured": {"regex": "a", field: "b"}}
    with pytest.raises(msgspec.ValidationError, match=rf"unknown field `{field}` - at `\$.structured`"):
        msgspec.convert(given, SamplingParams)
