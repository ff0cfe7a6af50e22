"""config.json as transformers reads it, and what is said of one that it does not take."""

import pytest
from transformers import LlamaConfig

from omni.checkpoint.hf_config import parse_config
from omni.errors import CheckpointError


def test_defaults_are_transformers_own() -> None:
    parsed = parse_config(LlamaConfig, {"model_type": "llama", "hidden_size": 96}, "Alpaca")
    assert parsed.to_dict() == LlamaConfig(hidden_size=96).to_dict()


def test_another_file_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"(?s)config\.json: .*hidden_size.*; use a published Alpaca folder"):
        parse_config(LlamaConfig, {"model_type": "llama", "hidden_size": "wide"}, "Alpaca")
