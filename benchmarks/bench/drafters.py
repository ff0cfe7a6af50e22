"""Drafters with dummy weights: checkpoint folders without weights, and the model of an engine's drafter."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.engine import BenchEngine
from omni.checkpoint import Checkpoint
from omni_ar.drafters.draft_model import ArDraftModel
from omni_ar.drafters.model import ModelDrafter
from omni_ar.model import ArModel
from shapes import SHAPES

_SMALLER: Mapping[str, str] = {"qwen3-8b": "qwen3-0.6b", "tiny-text": "tiny-text"}
"""Of `SHAPES`: a smaller model with the same vocabulary."""
_HEAD_IDS = 32_000
"""Size of the vocabulary of published EAGLE-3 heads."""


def draft_model_folder(shape: str, checkpoint: Checkpoint, folder: Path) -> Path | None:
    """A folder for `drafter_args.model` of `draft_model`; None if there is no smaller model of the shape's family.

    Its output matrix is the embedding table if the stage's is: the model may then repeat a text as the stage does (`drafts.py`).
    """
    if shape not in _SMALLER:
        return None
    path = folder / "draft_model"
    SHAPES[_SMALLER[shape]](path)
    config = json.loads((path / "config.json").read_text())
    same = {"tie_word_embeddings": checkpoint.config["tie_word_embeddings"]}
    (path / "config.json").write_text(json.dumps(config | same))
    return path


def eagle3_folder(checkpoint: Checkpoint, folder: Path) -> Path:
    """A folder for `drafter_args.model` of `eagle3`: one layer of the stage's width, with an MLP of three times that."""
    config: Mapping[str, Any] = checkpoint.config
    text = config.get("thinker_config", {}).get("text_config", config)
    same = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rope_theta")
    layers = text["num_hidden_layers"]
    head = {name: text[name] for name in same} | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        # The published choice, and what a tiny stage has of it.
        "eagle_aux_hidden_state_layer_ids": sorted({min(2, layers - 1), layers // 2, max(layers - 3, 0)}),
        "intermediate_size": 3 * text["hidden_size"],
        "draft_vocab_size": min(_HEAD_IDS, text["vocab_size"]),
        "max_position_embeddings": text["max_position_embeddings"],
        "rms_norm_eps": 1e-6,
    }
    path = folder / "eagle3"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(head))
    return path


def model_that_drafts(bench: BenchEngine, stage: str) -> ArModel | None:
    """The model of a stage's `draft_model`; None for other drafters."""
    drafter = bench.runners[stage]._drafter
    inner = drafter._model if isinstance(drafter, ModelDrafter) else None
    return inner.model if isinstance(inner, ArDraftModel) else None
