"""Linear maps, alone or fused with the norm before and the activation after.

cuBLAS computes many rows. Few rows are bound by reading the weights and by the number of launches: for measured shapes,
this project's kernels stream the weights and fuse the norm and the activation.

Shape legend: T rows, D inputs, N outputs.
"""

from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_ar.kernels.linear import reference
from omni_ar.kernels.linear.settings import TiledSettings, settings
from omni_ar.kernels.norm import Delta, PartialSum, add_rms_norm, residual_sum, rms_norm

__all__ = ["gated_linear", "linear", "linear_parts", "norm_linear"]


def linear(x_TD: Tensor, weight_ND: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`, `[T, N]`, all of one dtype, accumulated in fp32."""
    chosen = settings("linear", x_TD, weight_ND) if runs_kernel(x_TD) else None
    if chosen is None:
        return reference.linear(x_TD, weight_ND, bias_N)
    from omni_ar.kernels.linear import kernel

    return kernel.linear(x_TD, weight_ND, bias_N, chosen)


def linear_parts(x_TD: Tensor, weight_ND: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """As `linear`. Where several programs share the width, returns their parts, fp32 `[P, T, N]`, which `add_rms_norm`
    adds up."""
    chosen = settings("linear", x_TD, weight_ND) if runs_kernel(x_TD) else None
    if not isinstance(chosen, TiledSettings) or bias_N is not None or chosen.splits == 1:
        return linear(x_TD, weight_ND, bias_N)
    from omni_ar.kernels.linear import kernel

    return kernel.linear_parts(x_TD, weight_ND, chosen)


def gated_linear(
    x_TD: Tensor, weight_ND: Tensor, bias_N: Tensor | None = None, *, prefetch: Tensor | None = None
) -> Tensor:
    """`silu(gate) * up`, `[T, N / 2]`, of a linear map whose outputs are gate, then up. Rounded where separate
    operations would round.

    prefetch: the next product's weight, contiguous.
    """
    chosen = settings("gated", x_TD, weight_ND) if runs_kernel(x_TD) else None
    if chosen is None:
        return reference.gated_linear(x_TD, weight_ND, bias_N, prefetch)
    from omni_ar.kernels.linear import kernel

    return kernel.gated_linear(x_TD, weight_ND, bias_N, chosen)


def norm_linear(
    x_TD: Tensor,
    delta_TD: Delta | None,
    norm_D: Tensor,
    eps: float,
    weight_ND: Tensor,
    bias_N: Tensor | None = None,
    *,
    gated: bool = False,
    prefetch: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A residual addition, RMSNorm and a linear map: `(linear(rms_norm(sum)), sum)`.

    sum: `x_TD + delta_TD`, or `x_TD` where `delta_TD` is None. delta_TD: as for `add_rms_norm`. gated: the
    outputs are gate, then up, and the result is `silu(gate) * up`, `[T, N / 2]`. prefetch: as for `gated_linear`.

    Rounded where separate operations would round, with one exception: kernels apply the norm's scale after the product, so
    the normalized rows are not rounded. In the one on the matrix units, fp16 rows above 65504 divided by the largest norm
    weight overflow.
    """
    kind = "norm_gated" if gated else "norm_linear"
    in_parts = isinstance(delta_TD, Tensor) and delta_TD.ndim == 3
    chosen = settings(kind, x_TD, weight_ND) if runs_kernel(x_TD) and not in_parts else None
    if chosen is not None:
        from omni_ar.kernels.linear import kernel

        if isinstance(delta_TD, PartialSum):
            x_TD, delta_TD = residual_sum(x_TD, delta_TD), None
        return kernel.norm_linear(x_TD, delta_TD, norm_D, eps, weight_ND, bias_N, gated, chosen)
    if delta_TD is None:
        normed_TD = rms_norm(x_TD, norm_D, eps, prefetch=weight_ND)
    else:
        normed_TD, x_TD = add_rms_norm(x_TD, delta_TD, norm_D, eps, prefetch=weight_ND)
    if gated:
        return gated_linear(normed_TD, weight_ND, bias_N, prefetch=prefetch), x_TD
    return linear(normed_TD, weight_ND, bias_N), x_TD
