"""config.json as transformers reads it, and what is said of one that it does not take."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from omni.checkpoint import Checkpoint
from omni.checkpoint.hf_config import Section, check_index, once_per_config, parse_config
from omni.errors import CheckpointError


def test_defaults_are_transformers_own() -> None:
    parsed = parse_config(LlamaConfig, {"model_type": "llama", "hidden_size": 96}, "Alpaca")
    assert parsed.to_dict() == LlamaConfig(hidden_size=96).to_dict()


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


@pytest.mark.parametrize(("value", "fits"), [(0, True), (4, True), (5, False), (-1, False)])
def test_indices_are_checked(value: int, fits: bool) -> None:
    if fits:
        check_index("config.json: token", value, 5)
        return
    with pytest.raises(CheckpointError, match=rf"config\.json: token: {value} is out of range, 0 to 4; use the file"):
        check_index("config.json: token", value, 5)


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
    whole.equal({"kind": "plain", "heads": 6})
    whole.at_least(3, "heads", "kv_heads")
    whole.multiple("heads", of="kv_heads")
    whole.index(8, "heads", "kv_heads")
    whole.indices(8, "layers", "voices")
    whole.part("part").at_least(8, "width")
    assert (whole["kind"], whole.part("part")["width"], whole.get("heads"), whole.get("tails")) == ("plain", 8, 6, None)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda whole: whole.equal({"heads": 6, "kind": "other"}), "kind: is 'plain', not 'other'"),
        (lambda whole: whole.at_least(4, "heads", "kv_heads"), "kv_heads: is 3, below 4"),
        (lambda whole: whole.at_least(1, "layers"), r"layers\[0\]: is 0, below 1"),
        (lambda whole: whole.multiple("kv_heads", of="heads"), "kv_heads: is 3, no multiple of heads, which is 6"),
        (lambda whole: whole.part("part").multiple("width", of="empty"), r"part\.empty: is 0, below 1"),
        (lambda whole: whole.part("part").multiple("empty", of="width"), r"part\.empty: is 0, below 1"),
        (lambda whole: whole.indices(4, "layers"), r"layers\[1\]: 4 is out of range, 0 to 3"),
        (lambda whole: whole.indices(7, "voices"), r"voices\.bob: 7 is out of range, 0 to 6"),
        (lambda whole: whole.index(7, "kind"), "kind: 'plain' is out of range"),
        (lambda whole: whole.part("part").index(7, "none"), r"part\.none: None is out of range"),
        (lambda whole: whole.index(7, "layers"), r"layers: \[0, 4\] is out of range"),
        (lambda whole: whole.require(False, "heads", "are odd"), "heads: are odd"),
    ],
)
def test_what_is_wrong_in_a_section_is_named(check: Callable[[Section], None], message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: {message}.*; use the file that belongs"):
        check(Section(CONFIG))
