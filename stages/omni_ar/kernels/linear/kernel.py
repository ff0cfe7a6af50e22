"""Dispatch to the kernel of the settings' type."""

from torch import Tensor

from omni_ar.kernels.linear import streamed, tiled
from omni_ar.kernels.linear.settings import LinearSettings, TiledSettings


def linear(x_TD: Tensor, weight_ND: Tensor, bias_N: Tensor | None, settings: LinearSettings) -> Tensor:
    if isinstance(settings, TiledSettings):
        return tiled.linear(x_TD, weight_ND, bias_N, settings)
    return streamed.linear(x_TD, weight_ND, bias_N, settings)


def linear_parts(x_TD: Tensor, weight_ND: Tensor, settings: TiledSettings) -> Tensor:
    return tiled.linear_parts(x_TD, weight_ND, settings)


def gated_linear(x_TD: Tensor, weight_ND: Tensor, bias_N: Tensor | None, settings: LinearSettings) -> Tensor:
    if isinstance(settings, TiledSettings):
        return tiled.gated_linear(x_TD, weight_ND, bias_N, settings)
    return streamed.gated_linear(x_TD, weight_ND, bias_N, settings)


def norm_linear(
    x_TD: Tensor,
    delta_TD: Tensor | None,
    norm_D: Tensor,
    eps: float,
    weight_ND: Tensor,
    bias_N: Tensor | None,
    gated: bool,
    settings: LinearSettings,
) -> tuple[Tensor, Tensor]:
    if isinstance(settings, TiledSettings):
        return tiled.norm_linear(x_TD, delta_TD, norm_D, eps, weight_ND, bias_N, gated, settings)
    return streamed.norm_linear(x_TD, delta_TD, norm_D, eps, weight_ND, bias_N, gated, settings)
