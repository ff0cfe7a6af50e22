"""Loads towers from a stage's checkpoint."""

from collections.abc import Callable
from typing import TypeVar

import torch

from omni.checkpoint import Checkpoint, load_weights
from omni.checkpoint.json_file import read_optional_object
from omni.stage import StageContext
from omni_encoder.model import EncoderModel

ModelT = TypeVar("ModelT", bound=EncoderModel)


def load_tower(context: StageContext, make: Callable[[], ModelT], prefix: str) -> ModelT:
    """A tower on the context's device, in its dtype, filled by `load_weights`. Raises CheckpointError.

    make: builds it, with parameters and without buffers. prefix: prefix of its weights' names.
    """
    tower = unfilled(make, context.device.torch_device, context.dtype)
    load_weights(tower, context, {prefix: ""})
    return tower


def unfilled(make: Callable[[], ModelT], device: torch.device, dtype: torch.dtype) -> ModelT:
    """A tower whose parameters hold any values. make: as for `load_tower`."""
    # On the meta device no weight is initialized, nor held in another dtype.
    with torch.device("meta"):
        tower = make()
    # Unlike `to_empty`, which imports sympy, as it reads the layout of tensors on the meta device.
    empty = {name: torch.empty(t.shape, dtype=dtype, device=device) for name, t in tower.state_dict().items()}
    tower.load_state_dict(empty, assign=True)
    return tower


def read_max_pixels(checkpoint: Checkpoint) -> int | None:
    """Maximum pixels of the checkpoint's processor, which shrinks larger pictures; None if unspecified."""
    settings = read_optional_object(checkpoint.path / "preprocessor_config.json")
    most = settings.get("max_pixels", (settings.get("size") or {}).get("longest_edge"))
    return int(most) if most is not None else None
