"""Root mean square normalization, alone and together with the residual addition before it."""

from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_ar.kernels.norm import reference

__all__ = ["add_rms_norm", "residual_sum", "rms_norm"]


def rms_norm(x: Tensor, weight_D: Tensor, eps: float, *, prefetch: Tensor | None = None) -> Tensor:
    """Scales every `x[..., :]` to a root mean square of 1, in fp32, then by `weight_D`.

    x: `[..., D]`, any float dtype, its last dimension contiguous. Returns the same shape and dtype, contiguous.
    prefetch: the next product's weight, contiguous.
    """
    if not runs_kernel(x):
        return reference.rms_norm(x, weight_D, eps)
    from omni_ar.kernels.norm import kernel

    return kernel.rms_norm(x, weight_D, eps, prefetch)


def add_rms_norm(
    x_TD: Tensor, delta_TD: Tensor, weight_D: Tensor, eps: float, *, prefetch: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A residual addition and the norm that follows it: `(rms_norm(sum), sum)`, both `[T, D]`.

    sum: `x_TD + delta_TD`, rounded to the dtype of `x_TD` before the norm. delta_TD: in the same dtype, or in fp32
    parts `[P, T, D]`, whose sum is rounded first. prefetch: as for `rms_norm`.
    """
    if not runs_kernel(x_TD):
        return reference.add_rms_norm(x_TD, delta_TD, weight_D, eps)
    from omni_ar.kernels.norm import kernel

    return kernel.add_rms_norm(x_TD, delta_TD, weight_D, eps, prefetch)


def residual_sum(x_TD: Tensor, delta_TD: Tensor) -> Tensor:
    """`x_TD + delta_TD`, `[T, D]`; delta_TD: as for `add_rms_norm`."""
    return reference.residual_sum(x_TD, delta_TD)
