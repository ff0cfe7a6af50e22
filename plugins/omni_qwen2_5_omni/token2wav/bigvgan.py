"""BigVGAN (Lee et al., 2023): mel spectrogram to waveform. Shape legend: B rows, M mel bins, T mel frames."""

import math
from typing import Any

from torch import Tensor

from omni.errors import CheckpointError
from omni_diffusion.layers import AliasFreeUpsampler, UpsamplerShape
from omni_vocoder.layers import SnakeBeta

_DB_PER_NEPER = 20 / math.log(10)
_FLOOR_DB, _REFERENCE_DB = -115.0, 20.0


class BigVGAN(AliasFreeUpsampler):
    """Parameters are named as published. config: transformers' `Qwen2_5OmniBigVGANConfig`.

    samples_per_frame: 240 as released, at 24 kHz. context: 34 mel frames as released.
    Raises CheckpointError for kernels that do not give a whole number of samples for each.
    """

    def __init__(self, config: Any) -> None:
        try:
            shape = UpsamplerShape(
                inputs=config.mel_dim,
                upsample_initial_channel=config.upsample_initial_channel,
                upsample_rates=tuple(config.upsample_rates),
                upsample_kernel_sizes=tuple(config.upsample_kernel_sizes),
                resblock_kernel_sizes=tuple(config.resblock_kernel_sizes),
                resblock_dilation_sizes=tuple(map(tuple, config.resblock_dilation_sizes)),
            )
        except ValueError as error:
            raise CheckpointError("bigvgan_config", str(error), "restore config.json as published") from error
        super().__init__(shape, SnakeBeta)

    def forward(self, mel_BMT: Tensor) -> Tensor:
        """Logarithmic mel spectrogram, to decibels above a floor, on a scale from -1 to 1, to samples."""
        level_BMT = (mel_BMT * _DB_PER_NEPER).clamp(min=_FLOOR_DB) - _REFERENCE_DB
        return super().forward((2 * (level_BMT - _FLOOR_DB) / -_FLOOR_DB - 1).clamp(-1, 1))
