"""Checkpoints of small models that draft for a tiny checkpoint's text, and the time of their passes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from omni_ar.drafters import ModelDrafter
from omni_ar.model import PassWeights
from tests.support.tiny_heads import add_mtp, eagle3_head
from tests.support.tiny_text import write_noisy_model


def drafting_model(folder: Path, parent: Path) -> Path:
    """Writes a text model with the vocabulary of a checkpoint's text stage below `parent`, unless it is there; returns its folder.
    Of a text model, nearly the same model; else one with weights of its own."""
    other = parent / f"{folder.name}-drafts"
    if (other / "config.json").exists():
        return other
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] == "qwen3":
        write_noisy_model(folder, other)
    else:
        text = config["thinker_config"]["text_config"]
        torch.manual_seed(4)
        shape = Qwen3Config(
            vocab_size=text["vocab_size"],
            max_position_embeddings=32768,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            head_dim=8,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
        Qwen3ForCausalLM(shape).eval().save_pretrained(other)
    for name in ("tokenizer.json", "vocab.json"):
        if (folder / name).exists():
            shutil.copy(folder / name, other)
    return other


def drafting_head(folder: Path, parent: Path) -> dict[str, Any]:
    """Writes an `eagle3` head over all layers of a text model below `parent`, unless it is there; returns `drafter_args`."""
    layers, head = json.loads((folder / "config.json").read_text())["num_hidden_layers"], parent / f"{folder.name}-head"
    if not (head / "config.json").exists():
        eagle3_head(folder, draft_size=20, max_position_embeddings=40, states=layers).write(head)
    return {"model": str(head), "layers": list(range(layers))}


def add_mtp_once(folder: Path) -> None:
    """Adds a head for `mtp` to a text model, unless it has one."""
    if not any(name.startswith("mtp.") for name in load_file(folder / "model.safetensors")):
        add_mtp(folder)


@pytest.fixture
def cheap_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of drafters count as taking no time. In the tests' sizes they take as long as steps, so that drafts would not pay."""
    monkeypatch.setattr(ModelDrafter, "pass_weights", PassWeights(0, 0))
