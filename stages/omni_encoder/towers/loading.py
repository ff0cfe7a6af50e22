"""Loads towers from a stage's checkpoint, and configures their attention."""

import copy
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from omni.checkpoint import Checkpoint, load_weights
from omni.checkpoint.json_file import read_optional_object
from omni.stage import StageContext
from omni_encoder.segments import Segments


def load_tower(context: StageContext, kind: Any, config: Any, prefix: str) -> PreTrainedModel:
    """A tower of transformers on the context's device, in its dtype, filled by `load_weights`. Raises CheckpointError.

    kind, config: transformers' class and config of this tower. prefix: prefix of its weights' names.
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


NOT_ASKED = 0
"""A placeholder for the longest segment: with it a tower does not read from the device, and `Segments` ignores it."""
_NAME = "omni_segments_not_flash"


def use_segments(tower: PreTrainedModel) -> None:
    """Makes `tower` accept a `Segments` in place of the segments' ends, and any number for `max_seqlen`. Towers read the lengths of
    segments from the device, or pass their argument as `cu_seqlens` to the configured attention function, if its name contains that
    of flash attention. This configures a function that uses a `Segments` instead."""
    AttentionInterface.register(_NAME, _attend)
    # `set_attn_implementation` would look for the flash attention package.
    tower.config._attn_implementation = _NAME


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None = None,
    *,
    scaling: float,
    cu_seq_lens_q: Segments,
    **_: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers: maps `[1, heads, S, width]` to `[1, S, heads, width]`."""
    q_SHW, k_SHW, v_SHW = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return cu_seq_lens_q.attend(q_SHW, k_SHW, v_SHW, scaling)[None], None
