"""Attention within segments, for transformers' towers.

The towers read the lengths of segments from the device, or pass their argument as `cu_seqlens` to the configured
attention function, if its name contains that of flash attention. `use_segments` configures a function that uses a
`Segments` instead.
"""

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from omni_encoder.segments import Segments

NOT_ASKED = 0
"""A placeholder for the longest segment: with it a tower does not read from the device, and `Segments` ignores it."""
_NAME = "omni_segments_not_flash"


def use_segments(tower: PreTrainedModel) -> None:
    """Makes `tower` accept a `Segments` in place of the segments' ends, and any number for `max_seqlen`."""
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
