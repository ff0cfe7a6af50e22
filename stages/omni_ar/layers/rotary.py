"""Rotary position embedding (Su et al., 2021, arXiv:2104.09864), and its interleaved multi-axis form (M-RoPE).

Shape legend: T tokens, D head width, P position axes (1, or 3: time, height, width), F = D / 2 frequencies.
"""

import math
from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor, nn

from omni.device import SyncPoint, may_sync
from omni.errors import ConfigError
from omni_ar.kernels.rope import rotary_table

_AXES = 3


class FrequencyScaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Slows rotations of which training covered only a few turns, for longer sequences (Dubey et al., 2024, arXiv:2407.21783). A
    frequency that turns fewer than `slow_turns` times in `trained_positions` is divided by `factor`, one that turns more than
    `fast_turns` times is unchanged, and the divisor is interpolated in between."""

    factor: float
    slow_turns: float
    fast_turns: float
    trained_positions: int

    def __call__(self, frequency_F: Tensor) -> Tensor:
        """Frequencies in fp32, of the same shape."""
        turns_F = self.trained_positions / (2 * math.pi / frequency_F)
        kept_F = (turns_F - self.slow_turns) / (self.fast_turns - self.slow_turns)
        between_F = (1 - kept_F) * frequency_F / self.factor + kept_F * frequency_F
        scaled_F = torch.where(turns_F < self.slow_turns, frequency_F / self.factor, between_F)
        return torch.where(turns_F > self.fast_turns, frequency_F, scaled_F)


class RotaryEmbedding(nn.Module):
    """Cosines and sines of the rotary angles, computed in fp32. scaling: scales the frequencies.

    mrope_section: number of frequencies of each of the three axes, for M-RoPE; they sum to F. With `interleaved` their order is
    time, height, width, time, ... until an axis has its share, and time takes the rest; otherwise the axes are consecutive.

    The tables are plain tensors that start on the CPU: as buffers they would lose their values when a module is built on the meta
    device, and their precision in `module.to(torch.bfloat16)`. The first call on a device moves them.
    """

    def __init__(
        self,
        head_dim: int,
        theta: float,
        mrope_section: Sequence[int] | None = None,
        scaling: FrequencyScaling | None = None,
        *,
        interleaved: bool = True,
    ) -> None:
        """Raises ConfigError if `head_dim` is odd or `mrope_section` does not fit it."""
        super().__init__()
        if head_dim % 2:
            raise ConfigError("head_dim", f"is {head_dim}", "give an even number: rotary dimensions turn in pairs")
        exponent_F = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
        frequency_F = 1.0 / (theta**exponent_F)
        self._frequency_F = frequency_F if scaling is None else scaling(frequency_F)
        self._axis_F = None if mrope_section is None else _axes(head_dim // 2, mrope_section, interleaved)

    def forward(self, positions_PT: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns (cos, sin), each `[T, D]` in `dtype`, for int64 positions `[P, T]`; P is 1, or 3 with M-RoPE, else ValueError."""
        if self._frequency_F.device != positions_PT.device:
            with may_sync(SyncPoint.TABLES):
                self._frequency_F = self._frequency_F.to(positions_PT.device)
                self._axis_F = None if self._axis_F is None else self._axis_F.to(positions_PT.device)
        axes = positions_PT.shape[0]
        if axes == 1:
            return rotary_table(positions_PT, self._frequency_F, None, dtype)
        if axes == _AXES and self._axis_F is not None:
            return rotary_table(positions_PT, self._frequency_F, self._axis_F, dtype)
        raise ValueError(f"positions have {axes} axes: give 1, or {_AXES} to an embedding made with mrope_section")


def _axes(frequencies: int, section: Sequence[int], interleaved: bool) -> Tensor:
    if len(section) != _AXES or sum(section) != frequencies:
        remedy = f"give {_AXES} numbers that sum to half the head width, {frequencies}"
        raise ConfigError("mrope_section", f"is {list(section)}", remedy)
    if interleaved:
        axes = [f % _AXES if f < _AXES * section[f % _AXES] else 0 for f in range(frequencies)]
    else:
        axes = [axis for axis, count in enumerate(section) for _ in range(count)]
    return torch.tensor(axes, dtype=torch.int64, device="cpu")
