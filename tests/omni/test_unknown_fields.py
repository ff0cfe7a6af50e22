"""Structs that users fill in refuse what they do not know, by name: a misspelt field must not be silently ignored."""

import msgspec
import pytest

from omni.engine import EngineOptions
from omni.sampling import SamplingParams, StructuredOutput
from omni_ar.options import ArOptions
from omni_diffusion.options import DiffusionOptions
from omni_encoder.options import EncoderOptions
from omni_vocoder.options import VocoderOptions

KINDS = [ArOptions, DiffusionOptions, EncoderOptions, EngineOptions, SamplingParams, StructuredOutput, VocoderOptions]


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_field_is_refused_by_name(kind: type[msgspec.Struct]) -> None:
    assert msgspec.convert({}, kind) == kind()
    with pytest.raises(msgspec.ValidationError, match="unknown field `nonsense`"):
        msgspec.convert({"nonsense": 1}, kind)
    with pytest.raises(msgspec.ValidationError, match="unknown field `nonsense`"):
        msgspec.json.decode(b'{"nonsense": 1}', type=kind)


@pytest.mark.parametrize("field", ["regx", "json_schema", "guided_regex"])
def test_a_structure_within_parameters_refuses_it_too(field: str) -> None:
    given = {"structured": {"regex": "a", field: "b"}}
    with pytest.raises(msgspec.ValidationError, match=rf"unknown field `{field}` - at `\$.structured`"):
        msgspec.convert(given, SamplingParams)
