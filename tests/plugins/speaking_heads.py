"""Heads for the thinkers of tiny checkpoints that speak. Their weights are random, and their drafts are of a few ids: a text of
these ids has some of them, and others are rolled back."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny_heads import eagle3_head, mtp_head

DRAFTED = (0, 17, 42)
"""Ids of the drafts."""
PADDED = 520
"""Ids of the model that a head was trained for: the tokenizer has 513, and the thinker 576."""


def _thinker(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())["thinker_config"]["text_config"]
    return config


def write_eagle3(folder: Path, parent: Path) -> dict[str, Any]:
    """Writes an `eagle3` head for a checkpoint below `parent`, unless it is there; returns `drafter_args`."""
    other, text = parent / f"{folder.name}-eagle3", _thinker(folder)
    if not other.exists():
        head = eagle3_head(
            text | {"vocab_size": PADDED}, draft_size=len(DRAFTED), states=2, max_position_embeddings=512
        )
        head.weights["d2t"] = torch.tensor(DRAFTED) - torch.arange(len(DRAFTED))
        head.write(other)
    last = text["num_hidden_layers"] - 1
    return {"model": str(other), "layers": [last - 1, last]}


def write_mtp(folder: Path, parent: Path) -> Path:
    """Writes a checkpoint with a head for `mtp` besides below `parent`, unless it is there; returns its folder."""
    other, text = parent / f"{folder.name}-mtp", _thinker(folder)
    if not other.exists():
        head = mtp_head(text, biases="qwen2" in text.get("model_type", ""))
        head["norm.weight"].zero_()  # all logits are equal, so the first id is the draft
        shutil.copytree(folder, other, ignore=shutil.ignore_patterns("*.safetensors*"))
        weights = {f"mtp.{name}": each for name, each in head.items()}
        for file in folder.glob("*.safetensors"):
            weights |= load_file(file)
        save_file(weights, other / "model.safetensors", {"format": "pt"})
    return other
