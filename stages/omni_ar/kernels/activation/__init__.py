"""The activation between the two halves of a gated feed-forward layer."""

from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_ar.kernels.activation import reference

__all__ = ["silu_and_mul"]


def silu_and_mul(x_TX: Tensor, *, prefetch: Tensor | None = None) -> Tensor:
    """`silu(gate) * up` of `[T, 2I]` rows that hold gate, then up. Returns `[T, I]`, contiguous, of the same dtype.

    The activation is rounded to the dtype before it is multiplied. prefetch: the next product's weight, contiguous.
    """
    if not runs_kernel(x_TX):
        return reference.silu_and_mul(x_TX)
    from omni_ar.kernels.activation import kernel

    return kernel.silu_and_mul(x_TX, prefetch)
