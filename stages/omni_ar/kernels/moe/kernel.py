"""A mixture on a GPU: few rows each on their own, or rows grouped by expert."""

from torch import Tensor

from omni_ar.kernels.linear import gated_linear, linear
from omni_ar.kernels.moe.combine import combine
from omni_ar.kernels.moe.experts import Experts, Norm
from omni_ar.kernels.moe.few import mix_few
from omni_ar.kernels.moe.grouped import multiply_down, multiply_gate_up
from omni_ar.kernels.moe.grouping import route_and_group
from omni_ar.kernels.moe.settings import FewSettings, GroupedSettings, settings
from omni_ar.kernels.norm import add_rms_norm, rms_norm
from omni_ar.kernels.overlap import overlaps

__all__ = ["mix_experts", "mix_grouped"]


def mix_experts(x_TD: Tensor, delta_TD: Tensor | None, norm: Norm | None, experts: Experts) -> tuple[Tensor, Tensor]:
    """As the package's function of that name."""
    chosen = settings(x_TD, experts.down_EDI, experts.top_k)
    if isinstance(chosen, FewSettings):
        return mix_few(x_TD, delta_TD, norm, experts, chosen)
    return mix_grouped(x_TD, delta_TD, norm, experts, chosen)


def mix_grouped(
    x_TD: Tensor, delta_TD: Tensor | None, norm: Norm | None, experts: Experts, settings: GroupedSettings
) -> tuple[Tensor, Tensor]:
    """As `mix_experts`."""
    overlap = settings.overlap and overlaps(x_TD)
    sum_TD, normed_TD = x_TD, x_TD.contiguous()
    if norm is not None and delta_TD is not None:
        normed_TD, sum_TD = add_rms_norm(x_TD, delta_TD, norm.weight_D, norm.eps)
    elif norm is not None:
        normed_TD = rms_norm(x_TD, norm.weight_D, norm.eps)
    logits_TE = linear(normed_TD, experts.router_ED)
    weight_TK, _, groups = route_and_group(logits_TE, experts.top_k, experts.norm_topk, settings.block_m)
    hidden_SI = multiply_gate_up(normed_TD, experts.gate_up_EXD, groups, experts.top_k, settings.gate, overlap)
    y_SD = multiply_down(hidden_SI, experts.down_EDI, groups, settings.down, overlap)
    if experts.shared is None:
        return combine(y_SD, weight_TK, overlap), sum_TD
    shared_TD = linear(gated_linear(normed_TD, experts.shared.gate_up_XD), experts.shared.down_DI)
    return combine(y_SD, weight_TK, overlap, (shared_TD, normed_TD, experts.shared.gate_1D)), sum_TD
