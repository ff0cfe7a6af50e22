"""BigVGAN (Lee et al., 2023): mel spectrogram to waveform. Shape legend: B rows, M mel bins, T mel frames."""

import math
from typing import Any

from torch import Tensor

from omni.checkpoint.checks import Section
from omni_diffusion.layers import AliasFreeUpsampler, upsampler_shape
from omni_vocoder.layers import SnakeBeta

_DB_PER_NEPER = 20 / math.log(10)
_FLOOR_DB, _REFERENCE_DB = -115.0, 20.0


class BigVGAN(AliasFreeUpsampler):
    """Parameters are named as published. config: transformers' `Qwen2_5OmniBigVGANConfig`.

    samples_per_frame: 240 as released, at 24 kHz. context: 34 mel frames as released.
    Raises CheckpointError, as `upsampler_shape` does.
    """

    def __init__(self, config: Any) -> None:
        section = Section(config.to_dict(), "token2wav_config.bigvgan_config")
        super().__init__(upsampler_shape(section, inputs=config.mel_dim), SnakeBeta)

    def forward(self, mel_BMT: Tensor) -> Tensor:
        """Converts a logarithmic mel spectrogram to decibels above a floor, scaled to -1 to 1, and then to samples."""
        level_BMT = (mel_BMT * _DB_PER_NEPER).clamp(min=_FLOOR_DB) - _REFERENCE_DB
        return super().forward((2 * (level_BMT - _FLOOR_DB) / -_FLOOR_DB - 1).clamp(-1, 1))
