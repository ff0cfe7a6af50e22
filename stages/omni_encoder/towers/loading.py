"""Towers with the weights of a stage's checkpoint."""

import copy
import zlib
from typing import Any

from transformers import PreTrainedModel

from omni.checkpoint import Checkpoint, Destination, fill_dummy, load_module
from omni.checkpoint.json_file import read_optional_object
from omni.stage import StageContext


def load_tower(context: StageContext, kind: Any, config: Any, prefix: str) -> PreTrainedModel:
    """A tower of transformers on the context's device, in its dtype, with published weights, or random ones if the context says so.

    kind, config: transformers' own, of this tower. prefix: what the names of its weights start with. Raises CheckpointError, as
    `load_module` does.
    """
    with context.device.torch_device:
        # A copy: the tower changes it.
        tower: PreTrainedModel = kind._from_config(copy.deepcopy(config), dtype=context.dtype).eval()
    tower.requires_grad_(False)
    if context.load_format == "dummy":
        fill_dummy(tower, seed=zlib.crc32(context.stage.name.encode()))
        return tower

    def rename(name: str) -> Destination:
        return Destination(name.removeprefix(prefix))

    load_module(tower, context.checkpoint, rename, prefixes=(prefix,), device=context.device)
    return tower


def read_max_pixels(checkpoint: Checkpoint) -> int | None:
    """Pixels that the checkpoint's processor shrinks pictures to; None if it says nothing of it."""
    settings = read_optional_object(checkpoint.path / "preprocessor_config.json")
    most = settings.get("max_pixels", (settings.get("size") or {}).get("longest_edge"))
    return int(most) if most is not None else None
