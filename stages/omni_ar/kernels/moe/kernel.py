"""A mixture on a GPU: few rows each on their own, or rows grouped by expert."""

from torch import Tensor

from omni_ar.kernels.linear import gated_linear, linear
from omni_ar.kernels.moe.combine import combine
from omni_ar.kernels.moe.experts import Experts, Norm
from omni_ar.kernels.moe.few import mix_few
from omni_ar.kernels.moe.grouped import multiply_down, multiply_gate_up
from omni_ar.kernels.moe.grouping import route_and_group
from omni_ar.kernels.moe.settings import settings
from omni_ar.kernels.norm import add_rms_norm, rms_norm
from omni_ar.kernels.overlap import overlaps
from omni_ar.kernels.tuning import Config

__all__ = ["mix_experts", "mix_grouped"]


def mix_experts(x_TD: Tensor, delta_TD: Tensor | None, norm: Norm | None, experts: Experts) -> tuple[Tensor, Tensor]:
    """As the package's function of that name."""
    config = settings(x_TD, experts.down_EDI, experts.top_k)
    if config["few"]:
        return mix_few(x_TD, delta_TD, norm, experts, config)
    return mix_grouped(x_TD, delta_TD, norm, experts, config)


def mix_grouped(
    x_TD: Tensor, delta_TD: Tensor | None, norm: Norm | None, experts: Experts, config: Config
) -> tuple[Tensor, Tensor]:
    """As `mix_experts`. config: `block_m`, rows of a block; `overlap`, whether products and sum come while the kernel before each
    still runs, where kernels do; and what both products take."""
    config = {**config, "overlap": int(config["overlap"] and overlaps(x_TD))}
    sum_TD, normed_TD = x_TD, x_TD.contiguous()
    if norm is not None and delta_TD is not None:
        normed_TD, sum_TD = add_rms_norm(x_TD, delta_TD, norm.weight_D, norm.eps)
    elif norm is not None:
        normed_TD = rms_norm(x_TD, norm.weight_D, norm.eps)
    logits_TE = linear(normed_TD, experts.router_ED)
    weight_TK, _, groups = route_and_group(logits_TE, experts.top_k, experts.norm_topk, config["block_m"])
    hidden_SI = multiply_gate_up(normed_TD, experts.gate_up_EXD, groups, experts.top_k, config)
    y_SD = multiply_down(hidden_SI, experts.down_EDI, groups, config)
    if experts.shared is None:
        return combine(y_SD, weight_TK, config["overlap"]), sum_TD
    shared_TD = linear(gated_linear(normed_TD, experts.shared.gate_up_XD), experts.shared.down_DI)
    return combine(y_SD, weight_TK, config["overlap"], (shared_TD, normed_TD, experts.shared.gate_1D)), sum_TD
