"""Segments of a packed batch: ranges of positions that attend only to each other, such as the frames of a batch of videos.

Shape legend: S positions of the batch, H heads, W width of a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni_encoder.kernels.segment_attention import attend_segments
from omni_encoder.plan import EncoderInput


@dataclass(frozen=True, slots=True)
class Segments:
    """bounds_S2: int32, the result of `bounds_input`, on the device. lengths: `EncodePlan.segments`."""

    bounds_S2: Tensor
    lengths: tuple[int, ...] | None

    def attend(self, q_SHW: Tensor, k_SHW: Tensor, v_SHW: Tensor, scale: float) -> Tensor:
        """Attention within segments, `[S, H, W]`; see `attend_segments`. scale: factor of scores before the softmax."""
        return attend_segments(q_SHW, k_SHW, v_SHW, self.bounds_S2, self.lengths, scale)


def bounds_input(lengths: Sequence[int], positions: int) -> EncoderInput:
    """Bounds of each position's segment, and zeros for padding. lengths: of the segments. positions: of the batch."""
    return EncoderInput((positions, 2), torch.int32, (segment_bounds(lengths),))


def segment_bounds(lengths: Sequence[int]) -> NDArray[np.int32]:
    """`[S, 2]`: the start of each position's segment, and of the next one."""
    sizes = np.asarray(lengths, np.int32)
    ends = np.cumsum(sizes, dtype=np.int32)
    return np.repeat(np.stack([ends - sizes, ends], axis=1), sizes, axis=0)
