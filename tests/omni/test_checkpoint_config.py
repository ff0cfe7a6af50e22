"""config.json: counts that no model has, values that cannot be right, structs of a family's own, what transformers reads."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
import transformers
from transformers import LlamaConfig

from omni.checkpoint import Checkpoint
from omni.checkpoint.cached_config import once_per_config
from omni.checkpoint.checks import Section, require_index
from omni.checkpoint.hf_config import config_class, parse_config
from omni.checkpoint.limits import check_counts
from omni.checkpoint.typed_config import typed_config
from omni.engine import resolve_pipeline
from omni.errors import CheckpointError
from tests.support.csm_reference import tiny_csm
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import tiny_plugins
from tests.support.tiny_qwen2_5_omni import tiny_folder
from tests.support.tiny_text import write_text_model

ABSURD = 2**40


@pytest.mark.parametrize(
    ("name", "most"),
    [
        *((name, 1024) for name in ("num_hidden_layers", "encoder_layers", "num_layers", "depth", "n_layer")),
        *((name, 1024) for name in ("num_quantizers", "num_codebooks", "num_code_groups")),
        *((name, 2**22) for name in ("vocab_size", "text_vocab_size")),
        *((name, 2**24) for name in ("hidden_size", "intermediate_size", "head_dim", "num_attention_heads", "d_model")),
    ],
)
def test_a_count_is_bounded_wherever_it_stands(name: str, most: int) -> None:
    for config, field in (({name: most + 1}, name), ({"talker": {"text": {name: most + 1}}}, f"talker.text.{name}")):
        with pytest.raises(CheckpointError) as caught:
            check_counts(config)
        assert str(caught.value) == (
            f"config.json: {field}: is {most + 1:,}, above {most:,}; use the config.json that belongs to these weights"
        )
    check_counts({name: most, "talker": {"text": {name: most}}})


def test_fields_that_are_no_counts_are_not_checked() -> None:
    check_counts({"max_position_embeddings": ABSURD, "mlp_only_layers": [ABSURD], "num_hidden_layers": None})


def tiny_text() -> Path:
    folder = Path(tempfile.mkdtemp())
    write_text_model(folder, "moe")
    return folder


FIELDS: dict[Callable[[], Path], str] = {
    tiny_text: "num_hidden_layers",
    tiny_checkpoint: "talker_config.code_predictor_config.num_hidden_layers",
    tiny_folder: "token2wav_config.dit_config.enc_res2net_scale",
    tiny_csm: "codec_config.num_residual_layers",
}


@pytest.mark.parametrize(("made", "field"), FIELDS.items())
def test_every_family_refuses_it_at_the_start(tmp_path: Path, made: Callable[[], Path], field: str) -> None:
    config: Any = json.loads((made() / "config.json").read_text())
    *parents, name = field.split(".")
    inner = config
    for parent in parents:
        inner = inner[parent]
    assert name in inner
    inner[name] = ABSURD
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=rf"^config\.json: {field}: is .*, above"):
        resolve_pipeline(Checkpoint(tmp_path), tiny_plugins())


@pytest.mark.parametrize(("value", "fits"), [(0, True), (4, True), (5, False), (-1, False)])
def test_indices_are_checked(value: int, fits: bool) -> None:
    if fits:
        require_index("config.json: token", value, 5)
        return
    with pytest.raises(CheckpointError, match=rf"config\.json: token: {value} is out of range, 0 to 4; use the file"):
        require_index("config.json: token", value, 5)


CONFIG = {
    "kind": "plain",
    "heads": 6,
    "kv_heads": 3,
    "layers": [0, 4],
    "voices": {"ann": 2, "bob": 7},
    "part": {"width": 8, "none": None, "empty": 0},
}


def test_a_section_that_fits() -> None:
    whole = Section(CONFIG)
    whole.require_equal({"kind": "plain", "heads": 6})
    whole.require_multiple("heads", of="kv_heads")
    whole.require_index(8, "heads", "kv_heads")
    whole.require_indices(8, "layers", "voices")
    assert (whole["kind"], whole.part("part")["width"], whole.get("heads"), whole.get("tails")) == ("plain", 8, 6, None)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda whole: whole.require_equal({"heads": 6, "kind": "other"}), "kind: is 'plain', not 'other'"),
        (
            lambda whole: whole.require_multiple("kv_heads", of="heads"),
            "kv_heads: is 3, no multiple of heads, which is 6",
        ),
        (lambda whole: whole.part("part").require_multiple("width", of="empty"), r"part\.empty: is 0, below 1"),
        (lambda whole: whole.part("part").require_multiple("empty", of="width"), r"part\.empty: is 0, below 1"),
        (lambda whole: whole.require_indices(4, "layers"), r"layers\[1\]: 4 is out of range, 0 to 3"),
        (lambda whole: whole.require_indices(7, "voices"), r"voices\.bob: 7 is out of range, 0 to 6"),
        (lambda whole: whole.require_index(7, "kind"), "kind: 'plain' is out of range"),
        (lambda whole: whole.part("part").require_index(7, "none"), r"part\.none: None is out of range"),
        (lambda whole: whole.require_index(7, "layers"), r"layers: \[0, 4\] is out of range"),
        (lambda whole: whole.require(False, "heads", "are odd"), "heads: are odd"),
    ],
)
def test_an_invalid_field_of_a_section_is_named(check: Callable[[Section], None], message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: {message}.*; use the file that belongs"):
        check(Section(CONFIG))


class Inner(msgspec.Struct, frozen=True):
    rates: tuple[Annotated[int, msgspec.Meta(ge=1)], ...]


class Outer(msgspec.Struct, frozen=True):
    width: int
    inner: Inner
    name: str = "plain"


def test_undeclared_fields_are_ignored() -> None:
    raw = {"width": 3, "inner": {"rates": [2, 1], "torch_dtype": "float32"}, "model_type": "mine"}
    assert typed_config(Outer, raw) == Outer(3, Inner((2, 1)))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "^config.json: .*`width`"),
        ({"width": "3", "inner": {"rates": []}}, "^config.json: width: Expected `int`"),
        ({"width": True, "inner": {"rates": []}}, "^config.json: width: Expected `int`, got `bool`"),
        ({"width": 3, "inner": {}}, "^config.json: inner: .*`rates`"),
        ({"width": 3, "inner": {"rates": [2, 0]}}, r"^config.json: inner.rates\[1\]: Expected `int` >= 1; use the"),
    ],
)
def test_a_wrong_field_is_named(raw: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        typed_config(Outer, raw)


def test_defaults_are_transformers_own() -> None:
    parsed = parse_config(LlamaConfig, {"model_type": "llama", "hidden_size": 96}, "Alpaca")
    assert parsed.to_dict() == LlamaConfig(hidden_size=96).to_dict()


def test_a_config_class_is_imported_without_a_lasting_change() -> None:
    utils = vars(transformers.utils)
    before = utils["auto_docstring"]
    assert config_class("LlamaConfig") is LlamaConfig
    with pytest.raises(AttributeError, match="NoConfig"):
        config_class("NoConfig")
    assert utils["auto_docstring"] is before


def test_another_file_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"(?s)config\.json: .*hidden_size.*; use a published Alpaca folder"):
        parse_config(LlamaConfig, {"model_type": "llama", "hidden_size": "wide"}, "Alpaca")


def test_a_config_is_read_again_only_if_it_changed(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    @once_per_config
    def read_width(raw: dict[str, Any]) -> int:
        asked.append(raw)
        return 2 * int(raw["width"])

    for width in (3, 3, 4, 3):
        (tmp_path / "config.json").write_text(json.dumps({"width": width}))
        assert read_width(Checkpoint(tmp_path)) == 2 * width
    assert asked == [{"width": 3}, {"width": 4}]
