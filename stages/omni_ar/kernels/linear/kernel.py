"""The kernel that settings are of: with `tile_n` the one on the matrix units, else the one that keeps weights in registers."""

from torch import Tensor

from omni_ar.kernels.linear import streamed, tiled
from omni_ar.kernels.tuning import Config


def linear(x_TD: Tensor, weight_ND: Tensor, bias_N: Tensor | None, config: Config) -> Tensor:
    if "tile_n" in config:
        return tiled.linear(x_TD, weight_ND, bias_N, config)
    return streamed.linear(x_TD, weight_ND, bias_N, config)


def linear_parts(x_TD: Tensor, weight_ND: Tensor, config: Config) -> Tensor:
    return tiled.linear_parts(x_TD, weight_ND, config)


def gated_linear(x_TD: Tensor, weight_ND: Tensor, bias_N: Tensor | None, config: Config) -> Tensor:
    if "tile_n" in config:
        return tiled.gated_linear(x_TD, weight_ND, bias_N, config)
    return streamed.gated_linear(x_TD, weight_ND, bias_N, config)


def norm_linear(
    x_TD: Tensor,
    delta_TD: Tensor | None,
    norm_D: Tensor,
    eps: float,
    weight_ND: Tensor,
    bias_N: Tensor | None,
    gated: bool,
    config: Config,
) -> tuple[Tensor, Tensor]:
    run = tiled.norm_linear if "tile_n" in config else streamed.norm_linear
    return run(x_TD, delta_TD, norm_D, eps, weight_ND, bias_N, gated, config)
