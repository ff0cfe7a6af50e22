"""Settings by dotted path."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni.errors import ConfigError
from omni.pipeline import Output, Pipeline, Stage, apply_overrides, parse_override
from omni_ar.options import ArOptions


class Deep(msgspec.Struct, frozen=True, kw_only=True):
    """Options of every type that text can give."""

    count: int = 1
    share: float = 0.5
    flag: bool = False
    name: str = "x"
    most: int | None = 4
    ids: tuple[int, ...] = ()
    inner: "Deep | None" = None


def pipeline(options: msgspec.Struct) -> Pipeline:
    stages = tuple(Stage(name=name, kind="ar", model="m:f", options=options) for name in ("thinker", "talker"))
    return Pipeline(family="test", stages=stages, outputs=(Output(modality="text", stage="thinker"),), frontend="m:f")


def changed(path: str, value: object, options: msgspec.Struct | None = None) -> msgspec.Struct:
    """The thinker's options with one setting."""
    before = pipeline(ArOptions() if options is None else options)
    after = apply_overrides(before, {f"thinker.{path}": value})
    assert after.stage("talker") == before.stage("talker")
    return after.stage("thinker").options


def test_one_option_changes_and_nothing_else():
    assert changed("max_num_seqs", 3) == ArOptions(max_num_seqs=3)


def test_a_nested_option_changes_and_its_neighbours_stay():
    options = changed("sampling.temperature", "0.5")
    assert isinstance(options, ArOptions)
    assert options.sampling == msgspec.structs.replace(ArOptions().sampling, temperature=0.5)


def test_several_settings_of_one_stage_add_up():
    after = apply_overrides(pipeline(ArOptions()), {"talker.block_size": 4, "talker.sampling.top_k": 5})
    options = after.stage("talker").options
    assert isinstance(options, ArOptions)
    assert (options.block_size, options.sampling.top_k) == (4, 5)


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("count", "12", 12),
        ("share", "1", 1.0),
        ("share", "2.5e-1", 0.25),
        ("flag", "true", True),
        ("flag", "False", False),
        ("name", "a plain word", "a plain word"),
        ("name", "12", "12"),
        ("name", '"quoted"', "quoted"),
        ("name", "none", "none"),
        ("most", "none", None),
        ("most", "null", None),
        ("most", "9", 9),
        ("ids", "[1, 2]", (1, 2)),
        ("inner.count", "3", 3),
        ("inner", '{"count": 3}', Deep(count=3)),
    ],
)
def test_text_is_read_as_the_option_s_type(path: str, text: str, value: object):
    at: object = changed(path, text, Deep(inner=Deep()))
    for name in path.split("."):
        assert isinstance(at, msgspec.Struct)
        at = msgspec.structs.asdict(at)[name]
    assert at == value
    assert type(at) is type(value)


@given(st.integers(1, 10**6), st.floats(0, 100), st.text())
def test_any_value_that_python_gives_is_taken_as_it_is(count: int, share: float, name: str):
    given = {"thinker.count": count, "thinker.share": share}
    assert apply_overrides(pipeline(Deep()), given).stage("thinker").options == Deep(count=count, share=share)
    assert changed("name", msgspec.json.encode(name).decode(), Deep()) == Deep(name=name)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("narrator.block_size", 1, "narrator.block_size: there is no stage 'narrator'; use one of thinker, talker"),
        ("thinker", 1, "thinker: names no option; use one of max_num_seqs"),
        ("thinker.blocksize", 1, "thinker.blocksize: there is no option 'blocksize'; use one of max_num_seqs"),
        ("thinker.sampling.temp", 1, "thinker.sampling.temp: there is no option 'temp'; use one of max_tokens"),
        ("thinker.block_size.x", 1, "thinker.block_size.x: 'block_size' has no fields; set block_size itself"),
        ("thinker.block_size", "many", "thinker.block_size: 'many' does not fit: Expected `int`, got `str`"),
        ("thinker.block_size", 1.5, "thinker.block_size: 1.5 does not fit: Expected `int`, got `float`"),
        ("thinker.block_size", None, "thinker.block_size: None does not fit: Expected `int`, got `null`"),
        ("thinker.sampling", "hot", "thinker.sampling: 'hot' does not fit"),
        ("thinker.sampling", '{"temp": 1}', "thinker.sampling: '{\"temp\": 1}' does not fit: Object contains unknown"),
        ("thinker.block_size", 0, "thinker.block_size: block_size must be at least 1"),
        ("thinker.max_model_len", 1, "thinker.max_model_len: max_model_len must be at least 2"),
        ("thinker.num_blocks", 0, "thinker.num_blocks: num_blocks must be at least 1"),
        (
            "thinker.sampling.temperature",
            -1,
            "thinker.sampling.temperature: sampling.temperature: -1.0 is out of range",
        ),
        ("thinker.sampling.top_p", "0", "thinker.sampling.top_p: sampling.top_p: 0.0 is out of range"),
        ("thinker.sampling.max_tokens", 0, "thinker.sampling.max_tokens: sampling.max_tokens: 0 is out of range"),
    ],
)
def test_what_cannot_be_set_is_named(path: str, value: object, message: str):
    with pytest.raises(ConfigError) as caught:
        apply_overrides(pipeline(ArOptions()), {path: value})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("talker.max_num_seqs=8", ("talker.max_num_seqs", "8")),
        (" a.b = c=d ", ("a.b", "c=d")),
        ("a.b=", ("a.b", "")),
    ],
)
def test_an_override_is_a_path_and_a_value(text: str, parts: tuple[str, str]):
    assert parse_override(text) == parts


@pytest.mark.parametrize("text", ["talker.max_num_seqs", "max_num_seqs=8", ""])
def test_what_is_no_override_is_refused(text: str):
    with pytest.raises(ConfigError, match=r"--set: .* is not an override; write stage.option=value"):
        parse_override(text)
