"""A mixture of experts: which experts a token takes and what they make of it, together with the norm before them.

`route`, the first of it alone, is plain torch on every device: for those who watch, and for comparisons.

Shape legend: T tokens, D width, E experts, K experts per token, I intermediate width, S = T * K (token, expert) pairs.
"""

from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_ar.kernels.moe import reference
from omni_ar.kernels.moe.experts import Experts, Norm, SharedExpert
from omni_ar.kernels.moe.reference import route


def mix_experts(x_TD: Tensor, delta_TD: Tensor | None, norm: Norm | None, experts: Experts) -> tuple[Tensor, Tensor]:
    """Residual addition, RMSNorm, router and experts: what a mixture makes of a residual stream, and the stream.

    x_TD: `[T, D]`, T at least 1, in the experts' dtype. delta_TD: what is still to be added to it, which may come in parts
    (`add_rms_norm`); None for nothing. norm: None where the experts take x as it is, and then delta_TD is None.
    Returns the experts' weighted sum, the shared expert's part included, and `x + delta`: both `[T, D]`.
    """
    if runs_kernel(x_TD):
        from omni_ar.kernels.moe import kernel

        return kernel.mix_experts(x_TD, delta_TD, norm, experts)
    return reference.mix_experts(x_TD, delta_TD, norm, experts)


__all__ = ["Experts", "Norm", "SharedExpert", "mix_experts", "route"]
