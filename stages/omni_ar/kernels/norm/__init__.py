"""Root mean square normalization, alone and together with the residual addition before it, which may be a sum over ranks."""

from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni.parallel.rank_memory import RankMemory
from omni_ar.kernels.norm import reference
from omni_ar.kernels.norm.partial_sum import Delta, PartialSum

__all__ = ["Delta", "PartialSum", "add_rms_norm", "residual_sum", "rms_norm"]


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
    x_TD: Tensor, delta_TD: Delta, weight_D: Tensor, eps: float, *, prefetch: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A residual addition and the norm that follows it: `(rms_norm(sum), sum)`, both `[T, D]`.

    sum: `x_TD + delta_TD`, rounded to the dtype of `x_TD` before the norm. delta_TD: in the same dtype, or in fp32
    parts `[P, T, D]`, whose sum is rounded first, or a part of each rank, likewise. prefetch: as for `rms_norm`.
    """
    own_TD, peers = _summed_by_kernel(x_TD, delta_TD)
    if not runs_kernel(x_TD):
        return reference.add_rms_norm(x_TD, own_TD, weight_D, eps)
    from omni_ar.kernels.norm import kernel

    return kernel.add_rms_norm(x_TD, own_TD, weight_D, eps, prefetch, peers)


def residual_sum(x_TD: Tensor, delta_TD: Delta) -> Tensor:
    """`x_TD + delta_TD`, `[T, D]`; delta_TD: as for `add_rms_norm`."""
    own_TD, peers = _summed_by_kernel(x_TD, delta_TD)
    if peers is None:
        return reference.residual_sum(x_TD, own_TD)
    from omni_ar.kernels.norm import kernel

    return kernel.residual_sum(x_TD, own_TD, peers)


def _summed_by_kernel(x_TD: Tensor, delta_TD: Delta) -> tuple[Tensor, RankMemory | None]:
    """The addition, and the memory of the ranks whose parts the kernel is to add; without it, the addition is whole."""
    if not isinstance(delta_TD, PartialSum):
        return delta_TD, None
    peers = delta_TD.rank_memory(x_TD) if runs_kernel(x_TD) else None
    return (delta_TD.total(x_TD), None) if peers is None else (delta_TD.part, peers)
