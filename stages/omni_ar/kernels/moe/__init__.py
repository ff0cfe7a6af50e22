"""A mixture of experts: routing and experts, together with the norm before them.

`route`, the routing alone, is plain torch on every device, for observation and comparisons.

Shape legend: T tokens, D width, E experts, K experts per token, I intermediate width, S = T * K (token, expert) pairs. Of experts'
weights, E is the number of those that are held (`Experts.first`).
"""

from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_ar.kernels.moe import reference
from omni_ar.kernels.moe.experts import Experts, Norm, SharedExpert
from omni_ar.kernels.moe.reference import route
from omni_ar.kernels.norm import Delta, PartialSum, add_rms_norm


def mix_experts(x_TD: Tensor, delta_TD: Delta | None, norm: Norm | None, experts: Experts) -> tuple[Tensor, Tensor]:
    """Residual addition, RMSNorm, router and experts: returns the mixture's output and the residual stream.

    x_TD: `[T, D]`, T at least 1, in the experts' dtype. delta_TD: a pending addition to it, as for
    `add_rms_norm`, or None. norm: None where the experts take x unchanged; delta_TD is then None.
    Returns the weighted sum of the held experts, the shared expert's part included, and `x + delta`: both `[T, D]`.
    """
    if isinstance(delta_TD, PartialSum):
        assert norm is not None
        normed_TD, sum_TD = add_rms_norm(x_TD, delta_TD, norm.weight_D, norm.eps)
        y_TD, _ = mix_experts(normed_TD, None, None, experts)
        return y_TD, sum_TD
    if runs_kernel(x_TD):
        from omni_ar.kernels.moe import kernel

        return kernel.mix_experts(x_TD, delta_TD, norm, experts)
    return reference.mix_experts(x_TD, delta_TD, norm, experts)


__all__ = ["Experts", "Norm", "SharedExpert", "mix_experts", "route"]
