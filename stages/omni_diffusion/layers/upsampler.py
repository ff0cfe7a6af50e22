"""A convolutional net from latent frames to samples with alias-free activations (after Lee et al., 2023), exact in parts.

Shape legend: B rows, M values of a latent frame, T latent frames (in `AliasFree`: samples), C channels, S samples.

Each sample depends on `context` frames on either side and on no others. So parts of any size, computed with these frames where
they exist and without their samples, equal those parts of the whole waveform, `context` frames late. An edge of a part that is an
edge of the signal is padded like that of the whole. So rows of a batch have one length, and short signals are not padded.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from omni.checkpoint.checks import RESTORE_FILE, Section
from omni.errors import CheckpointError
from omni_diffusion.kernels.alias_free import REACH, alias_free, resampling_filters


class AliasFree(nn.Module):
    """An activation at twice the rate, so that its harmonics alias less. act: elementwise within a channel, on `[B, C, 2, T]`."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.act = act
        up_21K, down_12K = (weight.to(torch.get_default_device()) for weight in resampling_filters())
        self.up, self.down = nn.Buffer(up_21K, persistent=False), nn.Buffer(down_12K, persistent=False)

    def forward(self, signal_BCT: Tensor) -> Tensor:
        """`[B, C, T]` to the same shape."""
        return alias_free(signal_BCT, self.act, self.up, self.down)


_EDGE = 7
"""Width of the first and of the last convolution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsamplerShape:
    """Fields have the names of published configs. inputs: M. upsample_initial_channel: channels of the first level; each further
    level has half. upsample_*: of each level's upsampling. resblock_*: of the blocks after each level, whose outputs are averaged.

    Raises ValueError, naming the field, for kernels that do not give a whole number of samples per input.
    """

    inputs: int
    upsample_initial_channel: int
    upsample_rates: tuple[int, ...]
    upsample_kernel_sizes: tuple[int, ...]
    resblock_kernel_sizes: tuple[int, ...]
    resblock_dilation_sizes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        for rate, kernel in self.levels:
            if kernel < rate or (kernel - rate) % 2:
                raise ValueError(
                    f"upsample_kernel_sizes has {kernel} beside a rate of {rate}: no whole number of samples"
                )
        if any(kernel % 2 == 0 for kernel in self.resblock_kernel_sizes):
            raise ValueError(f"resblock_kernel_sizes has an even width: {self.resblock_kernel_sizes}")

    @property
    def levels(self) -> list[tuple[int, int]]:
        """Rate and kernel width of each upsampling."""
        return list(zip(self.upsample_rates, self.upsample_kernel_sizes, strict=True))

    @property
    def residuals(self) -> list[tuple[int, tuple[int, ...]]]:
        """Kernel width and dilations of each block of a level."""
        return list(zip(self.resblock_kernel_sizes, self.resblock_dilation_sizes, strict=True))

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.upsample_rates)

    @property
    def context(self) -> int:
        """Number of frames to either side of a frame that its samples depend on."""
        edge = _EDGE // 2
        first, last = -edge - REACH, self.samples_per_frame - 1 + edge + REACH
        widest = max(
            sum((kernel - 1) // 2 * (dilation + 1) + 2 * REACH for dilation in dilations)
            for kernel, dilations in self.residuals
        )
        for rate, kernel in reversed(self.levels):
            cut = (kernel - rate) // 2
            first, last = -((widest - first - cut + kernel - 1) // rate), (last + widest + cut) // rate
        return max(-first, last) + edge


def upsampler_shape(config: Section, inputs: int) -> UpsamplerShape:
    """Reads the shape from a config. Raises CheckpointError where `UpsamplerShape` raises ValueError."""
    try:
        return UpsamplerShape(
            inputs=inputs,
            upsample_initial_channel=config["upsample_initial_channel"],
            upsample_rates=tuple(config["upsample_rates"]),
            upsample_kernel_sizes=tuple(config["upsample_kernel_sizes"]),
            resblock_kernel_sizes=tuple(config["resblock_kernel_sizes"]),
            resblock_dilation_sizes=tuple(map(tuple, config["resblock_dilation_sizes"])),
        )
    except ValueError as error:
        raise CheckpointError(config.field(), str(error), RESTORE_FILE) from error


class ResidualBlock(nn.Module):
    """Dilated convolutions, each followed by an undilated one, with an activation before every convolution."""

    def __init__(
        self, channels: int, kernel: int, dilations: tuple[int, ...], activation: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(_same(channels, kernel, dilation) for dilation in dilations)
        self.convs2 = nn.ModuleList(_same(channels, kernel, 1) for _ in dilations)
        self.activations = nn.ModuleList(AliasFree(activation(channels)) for _ in range(2 * len(dilations)))

    def forward(self, signal_BCT: Tensor) -> Tensor:
        for index, (dilated, plain) in enumerate(zip(self.convs1, self.convs2, strict=True)):
            first, second = self.activations[2 * index], self.activations[2 * index + 1]
            signal_BCT = signal_BCT + plain(second(dilated(first(signal_BCT))))
        return signal_BCT


class AliasFreeUpsampler(nn.Module):
    """activation: factory of an activation for a number of channels."""

    def __init__(self, shape: UpsamplerShape, activation: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.samples_per_frame, self.context = shape.samples_per_frame, shape.context
        widths = [shape.upsample_initial_channel >> level for level in range(len(shape.levels) + 1)]
        self.conv_pre = nn.Conv1d(shape.inputs, widths[0], _EDGE, padding=_EDGE // 2)
        self.ups = nn.ModuleList(
            nn.ModuleList([nn.ConvTranspose1d(width, width // 2, kernel, rate, padding=(kernel - rate) // 2)])
            for width, (rate, kernel) in zip(widths, shape.levels, strict=False)
        )
        self.resblocks = nn.ModuleList(
            ResidualBlock(width, kernel, dilations, activation)
            for width in widths[1:]
            for kernel, dilations in shape.residuals
        )
        self.activation_post = AliasFree(activation(widths[-1]))
        self.conv_post = nn.Conv1d(widths[-1], 1, _EDGE, padding=_EDGE // 2, bias=False)

    def forward(self, latents_BMT: Tensor) -> Tensor:
        """T at least 1, to samples in [-1, 1], `[B, T * samples_per_frame]`."""
        signal_BCT = self.conv_pre(latents_BMT)
        parallel = len(self.resblocks) // len(self.ups)
        for level, upsample in enumerate(self.ups):
            signal_BCT = upsample[0](signal_BCT)  # type: ignore[index]
            blocks = self.resblocks[parallel * level : parallel * (level + 1)]
            signal_BCT = torch.stack([block(signal_BCT) for block in blocks]).mean(0)
        wave_B1S: Tensor = self.conv_post(self.activation_post(signal_BCT))
        return wave_B1S.squeeze(1).clamp(-1, 1)


def _same(channels: int, kernel: int, dilation: int) -> nn.Conv1d:
    return nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=(kernel - 1) * dilation // 2)
