"""Attention within segments, for transformers' towers.

The towers find out the lengths of segments on the device, or hand what they were given as `cu_seqlens` to the attention function of
their configuration, if its name tells of flash attention. `use_segments` makes that function one that asks a `Segments`.
"""

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from omni_encoder.segments import Segments

NOT_ASKED = 0
"""Longest segment: a tower that was given one does not ask the device, and `Segments` does without."""
_NAME = "omni_segments_not_flash"


def use_segments(tower: PreTrainedModel) -> None:
    """From now on `tower` takes a `Segments` where it would take where segments end, and any number for `max_seqlen`."""
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
    """As transformers calls it: `[1, heads, S, width]` in, `[1, S, heads, width]` out."""
    q_SHW, k_SHW, v_SHW = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return cu_seq_lens_q.attend(q_SHW, k_SHW, v_SHW, scaling)[None], None
