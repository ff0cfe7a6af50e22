"""Loads towers from a stage's checkpoint."""

import copy
from typing import Any

from transformers import PreTrainedModel

from omni.checkpoint import Checkpoint, load_weights
from omni.checkpoint.json_file import read_optional_object
from omni.stage import StageContext


def load_tower(context: StageContext, kind: Any, config: Any, prefix: str) -> PreTrainedModel:
    """A tower of transformers on the context's device, in its dtype, filled by `load_weights`.

    kind, config: transformers' class and config of this tower. prefix: prefix of its weights' names. Raises
    CheckpointError.
    """
    with context.device.torch_device:
        # A copy, since the tower modifies it.
        tower: PreTrainedModel = kind._from_config(copy.deepcopy(config), dtype=context.dtype).eval()
    load_weights(tower, context, {prefix: ""})
    return tower


def read_max_pixels(checkpoint: Checkpoint) -> int | None:
    """Maximum pixels of the checkpoint's processor, which shrinks larger pictures; None if unspecified."""
    settings = read_optional_object(checkpoint.path / "preprocessor_config.json")
    most = settings.get("max_pixels", (settings.get("size") or {}).get("longest_edge"))
    return int(most) if most is not None else None
