"""config.json as transformers reads it, and what is said of one that it does not take."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from omni.checkpoint import Checkpoint
from omni.checkpoint.cached_config import once_per_config
from omni.checkpoint.hf_config import parse_config
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
