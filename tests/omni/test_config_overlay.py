"""Settings laid over options, by dotted path, and their origins."""

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni.config import Setting, SettingsLayer, overlay, parse_override
from omni.engine.configuration import configure
from omni.errors import ConfigError
from omni.sampling import GREEDY, SamplingParams
from omni_ar.options import ArOptions
from tests.support.fake_graph import fake_pipeline


class Deep(msgspec.Struct, frozen=True, kw_only=True):
    """Options of every type that text can give."""

    count: int = 1
    share: float = 0.5
    flag: bool = False
    name: str = "x"
    most: int | None = 4
    word: str | None = "w"
    ids: tuple[int, ...] = ()
    inner: "Deep | None" = None


def laid(values: Mapping[str, object], options: msgspec.Struct, *, file: bool = False) -> dict[str, msgspec.Struct]:
    """Two stages of the same options with one layer laid over them."""
    after, _ = overlay({"thinker": options, "talker": options}, [SettingsLayer("test.toml", values, file)], ("engine",))
    return after


def changed(path: str, value: object, options: msgspec.Struct | None = None) -> msgspec.Struct:
    """The thinker's options with one setting."""
    options = ArOptions() if options is None else options
    after = laid({f"thinker.{path}": value}, options)
    assert after["talker"] == options
    return after["thinker"]


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
        ("word", "none", None),
        ("word", "null", None),
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
    assert laid(given, Deep())["thinker"] == Deep(count=count, share=share)
    assert changed("name", msgspec.json.encode(name).decode(), Deep()) == Deep(name=name)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("narrator.block_size", 1, "there is no stage 'narrator'; use one of thinker, talker, engine"),
        ("thinker", 1, "names no option; use one of max_num_seqs"),
        ("thinker.blocksize", 1, "there is no option 'blocksize'; use one of max_num_seqs"),
        ("thinker.sampling.temp", 1, "there is no option 'temp'; use one of max_tokens"),
        ("thinker.block_size.x", 1, "'block_size' has no fields; set block_size itself"),
        ("thinker.block_size", "many", "'many' does not fit: Expected `int`, got `str`"),
        ("thinker.block_size", None, "None does not fit: Expected `int`, got `null`"),
        ("thinker.sampling", "hot", "'hot' does not fit"),
        ("thinker.sampling", '{"temp": 1', "'{\"temp\": 1' does not fit: Expected `object`, got `str`"),
        ("thinker.block_size", 0, "block_size must be at least 1"),
        ("thinker.max_model_len", 1, "max_model_len must be at least 2"),
        ("thinker.num_blocks", 0, "num_blocks must be at least 1"),
        ("thinker.sampling.temperature", -1, "sampling.temperature: -1.0 is out of range"),
    ],
)
def test_an_invalid_setting_is_named(path: str, value: object, message: str):
    with pytest.raises(ConfigError) as caught:
        laid({path: value}, ArOptions())
    assert str(caught.value).startswith(f"{path}: {message}")


def test_an_unknown_option_in_a_table_is_named():
    with pytest.raises(
        ConfigError, match=r"^thinker\.sampling\.temp: there is no option 'temp'; use one of max_tokens"
    ):
        laid({"thinker.sampling": '{"temp": 1}'}, ArOptions())


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
def test_an_invalid_override_is_refused(text: str):
    with pytest.raises(ConfigError, match=r"--set: .* is not an override; write stage.option=value"):
        parse_override(text)


TABLE = {"block_size": 8, "sampling": {"top_k": 3, "stop_token_ids": [1, 2]}}


@pytest.mark.parametrize(
    ("values", "file"),
    [
        ({"thinker": TABLE}, True),
        ({"thinker": TABLE}, False),
        ({"thinker.block_size": 8, "thinker.sampling": '{"top_k": 3, "stop_token_ids": [1, 2]}'}, False),
    ],
)
def test_a_table_changes_the_fields_that_it_names(values: dict[str, object], file: bool):
    sampling = msgspec.structs.replace(GREEDY, top_k=3, stop_token_ids=(1, 2))
    assert laid(values, ArOptions(), file=file)["thinker"] == ArOptions(block_size=8, sampling=sampling)


def test_options_of_their_own_type_replace_them_all():
    sampling = msgspec.structs.replace(GREEDY, temperature=0.5)
    before = ArOptions(sampling=msgspec.structs.replace(GREEDY, top_k=9))
    assert laid({"thinker.sampling": sampling}, before)["thinker"] == ArOptions(sampling=sampling)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"block_size": "8"}, "block_size: '8' does not fit: Expected `int`, got `str`"),
        ({"prefix_cache": "false"}, "prefix_cache: 'false' does not fit: Expected `bool`"),
        ({"sampling": {"top_k": 1.5}}, "sampling.top_k: 1.5 does not fit: Expected `int | null`"),
        ({"sampling": {"topk": 1}}, "sampling.topk: there is no option 'topk'; use one of max_tokens"),
        ({"sampling": {"top_p": 7.0}}, "sampling.top_p: sampling.top_p: 7.0 is out of range"),
        ({"block_size": {"x": 1}}, "block_size: {'x': 1} does not fit"),
        ({"blocksize": 1}, "blocksize: there is no option 'blocksize'; use one of max_num_seqs"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_the_file(table: dict[str, object], message: str):
    with pytest.raises(ConfigError) as caught:
        laid({"thinker": table}, ArOptions(), file=True)
    assert str(caught.value).startswith(f"test.toml: thinker.{message}")


def test_a_file_writes_none_as_toml_can():
    assert laid({"thinker": {"most": "none"}}, Deep(), file=True)["thinker"] == Deep(most=None)


def origins(options: msgspec.Struct, *layers: SettingsLayer) -> dict[str, str]:
    _, settings = overlay({"thinker": options}, layers)
    return {setting.path: setting.origin for setting in settings}


def test_untouched_settings_are_the_default_s_or_the_family_s():
    family = ArOptions(block_size=4, sampling=msgspec.structs.replace(GREEDY, top_k=9))
    _, settings = overlay({"thinker": family}, [])
    assert Setting(path="thinker.block_size", value=4, origin="family") in settings
    assert Setting(path="thinker.sampling.top_k", value=9, origin="family") in settings
    others = [setting for setting in settings if setting.path not in ("thinker.block_size", "thinker.sampling.top_k")]
    assert {setting.origin for setting in others} == {"default"}
    assert len(settings) == len(ArOptions.__struct_fields__) - 1 + len(SamplingParams.__struct_fields__)


def test_required_options_have_the_origin_family():
    kind = msgspec.defstruct("Required", [("size", int), ("deep", Deep)], frozen=True, kw_only=True)
    found = origins(kind(size=3, deep=Deep()))
    assert (found["thinker.size"], found["thinker.deep.count"]) == ("family", "family")


def test_the_last_layer_that_sets_a_value_is_its_origin():
    layers = (
        SettingsLayer(
            "omni.toml", {"thinker": {"block_size": 4, "max_num_seqs": 2, "sampling": {"top_k": 5}}}, file=True
        ),
        SettingsLayer("--set", {"thinker.block_size": "16", "thinker.sampling.top_p": "0.5"}),
        SettingsLayer("argument", {"thinker.max_num_seqs": 2}),
    )
    found = origins(ArOptions(), *layers)
    assert found["thinker.block_size"] == "--set"
    assert found["thinker.max_num_seqs"] == "argument"
    assert found["thinker.sampling.top_k"] == "omni.toml"
    assert found["thinker.sampling.top_p"] == "--set"
    assert found["thinker.sampling.temperature"] == "default"


def test_a_struct_value_is_the_origin_of_its_fields_until_one_is_set():
    layers = (
        SettingsLayer("omni.toml", {"thinker": {"sampling": {"top_k": 5}}}, file=True),
        SettingsLayer("overrides", {"thinker.sampling": GREEDY}),
        SettingsLayer("argument", {"thinker.sampling.top_p": 0.5}),
    )
    found = origins(ArOptions(), *layers)
    sampling = {path.rpartition(".")[2]: origin for path, origin in found.items() if ".sampling." in path}
    assert sampling.pop("top_p") == "argument"
    assert set(sampling.values()) == {"overrides"}


BIG_CHUNKS = SettingsLayer("omni.toml", {"thinker": {"graph_chunk_sizes": [512]}}, file=True)
FEW_TOKENS = SettingsLayer("--set", {"thinker.max_num_batched_tokens": "256", "thinker.block_size": "8"})
FEW, BIG = "thinker.max_num_batched_tokens", "omni.toml: thinker.graph_chunk_sizes"
CHUNKS = ": graph_chunk_sizes must be at least 1, at most max_num_batched_tokens, 256; "
TOGETHER = CHUNKS + "use values that go together"
MIN, MAX = (
    SettingsLayer("a", {"thinker.sampling.min_tokens": 9}),
    SettingsLayer("b", {"thinker.sampling": '{"max_tokens": 8, "top_k": 3}'}),
)


@pytest.mark.parametrize(
    ("options", "layers", "message"),
    [
        (ArOptions(), (BIG_CHUNKS, FEW_TOKENS), f"{BIG}, {FEW}{TOGETHER}"),
        (ArOptions(), (FEW_TOKENS, BIG_CHUNKS), f"{FEW}, {BIG}{TOGETHER}"),
        (ArOptions(graph_chunk_sizes=(512,)), (FEW_TOKENS,), FEW + CHUNKS),
        (ArOptions(max_num_batched_tokens=256), (BIG_CHUNKS,), BIG + CHUNKS),
        (
            ArOptions(),
            (MIN, MAX),
            "thinker.sampling.min_tokens, thinker.sampling.max_tokens: sampling.min_tokens: 9 is more than max_tokens, 8",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_all_named(
    options: ArOptions, layers: tuple[SettingsLayer, ...], message: str
):
    with pytest.raises(ConfigError) as caught:
        overlay({"thinker": options}, layers)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("turn", [1, -1])
def test_a_setting_may_come_before_the_one_that_bounds_it(turn: int):
    layers = [
        SettingsLayer("a", {"thinker.graph_chunk_sizes": (4096,)}),
        SettingsLayer("b", {"thinker.max_num_batched_tokens": 8192}),
    ]
    after, _ = overlay({"thinker": ArOptions()}, layers[::turn])
    assert after["thinker"] == ArOptions(graph_chunk_sizes=(4096,), max_num_batched_tokens=8192)


@given(st.permutations(["a", "b", "c"]), st.lists(st.integers(1, 99), min_size=3, max_size=3))
def test_later_layers_win(names: list[str], counts: list[int]):
    layers = [SettingsLayer(name, {"thinker.count": count}) for name, count in zip(names, counts, strict=True)]
    after, settings = overlay({"thinker": Deep()}, layers)
    assert after["thinker"] == Deep(count=counts[-1])
    assert settings[0] == Setting(path="thinker.count", value=counts[-1], origin=names[-1])


def test_an_option_of_few_choices_names_them():
    words = r"attention_backend: 'fast' does not fit: .*; use one of 'auto', 'torch', 't"
    with pytest.raises(ConfigError, match=words):
        changed("attention_backend", "fast")


@pytest.mark.parametrize(
    ("path", "value", "remedy"),
    [
        ("pipeline_layers", "1,2", "give a list such as [1,2] or 'measured' or none"),
        ("hidden_layers", "1,2", "give a list such as [1,2]"),
        ("sampling.stop", 3, 'give a text or a list such as ["a","b"] or none'),
        ("sampling.bad_words_ids", "1,2", "give a list such as [[1,2],[3]] or none"),
        ("block_size", "many", "give a value of that type"),
    ],
)
def test_an_option_that_takes_a_list_shows_one(path: str, value: object, remedy: str):
    with pytest.raises(ConfigError) as caught:
        changed(path, value)
    assert caught.value.remedy == remedy


class OptionsWithDtype(msgspec.Struct, frozen=True, kw_only=True):
    dtype: int = 3


def test_a_stage_may_have_an_option_called_dtype():
    plain = fake_pipeline()
    stages = [msgspec.structs.replace(stage, options=OptionsWithDtype()) for stage in plain.stages]
    pipeline = msgspec.structs.replace(plain, stages=tuple(stages))
    configured, settings = configure(pipeline, [SettingsLayer("test", {"writer.dtype": 5})])
    writer = configured.stage("writer")
    assert (writer.options, writer.dtype) == (OptionsWithDtype(dtype=5), None)
    assert [setting.value for setting in settings if setting.path == "writer.dtype"] == [5]
