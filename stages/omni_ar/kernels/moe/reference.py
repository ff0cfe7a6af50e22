"""Mixture of experts in plain torch. Shapes as in the package."""

import torch
from torch import Tensor
from torch.nn import functional as F

from omni_ar.kernels.linear import gated_linear, linear
from omni_ar.kernels.moe.experts import Experts, Norm
from omni_ar.kernels.norm import add_rms_norm, rms_norm

_ALIGNMENT_BYTES = 16


def mix_experts(x_TD: Tensor, delta_TD: Tensor | None, norm: Norm | None, experts: Experts) -> tuple[Tensor, Tensor]:
    sum_TD, normed_TD = x_TD, x_TD
    if norm is not None and delta_TD is not None:
        normed_TD, sum_TD = add_rms_norm(x_TD, delta_TD, norm.weight_D, norm.eps)
    elif norm is not None:
        normed_TD = rms_norm(x_TD, norm.weight_D, norm.eps)
    weight_TK, expert_TK = route(linear(normed_TD, experts.router_ED), experts.top_k, experts.norm_topk)
    given = (normed_TD, experts.gate_up_EXD, experts.down_EDI, weight_TK)
    if experts.num_held == experts.num_experts:
        y_TD = run_experts(*given, expert_TK)
    else:
        y_TD = run_experts(*given, held_only(expert_TK, experts), some=True)
    if experts.shared is None:
        return y_TD, sum_TD
    shared_TD = linear(gated_linear(normed_TD, experts.shared.gate_up_XD), experts.shared.down_DI)
    share_T1 = F.sigmoid(F.linear(normed_TD, experts.shared.gate_1D))
    return y_TD + share_T1 * shared_TD, sum_TD


def route(logits_TE: Tensor, top_k: int, norm_topk: bool) -> tuple[Tensor, Tensor]:
    """Each token's `top_k` experts: softmax over all experts, then the largest.

    logits_TE: `[T, E]`, any floating dtype. norm_topk: whether a token's weights are scaled to sum to 1.
    Returns weights `[T, K]`, float32, largest first, and expert ids `[T, K]`, int64.
    """
    weight_TK, expert_TK = logits_TE.softmax(-1, dtype=torch.float32).topk(top_k, dim=-1)
    if norm_topk:
        weight_TK = weight_TK / weight_TK.sum(-1, keepdim=True)
    return weight_TK, expert_TK


def held_only(expert_TK: Tensor, experts: Experts) -> Tensor:
    """Expert ids as indices of the held experts; `num_held` for any other expert."""
    index_TK = expert_TK - experts.first
    return index_TK.where((index_TK >= 0) & (index_TK < experts.num_held), experts.num_held)


def run_experts(
    x_TD: Tensor, gate_up_EXD: Tensor, down_EDI: Tensor, weight_TK: Tensor, expert_TK: Tensor, some: bool = False
) -> Tensor:
    """The weighted sum of the outputs `down(silu(gate(x)) * up(x))` of each token's experts, `[T, D]` in x's dtype.

    weight_TK, expert_TK: as `route` returns them. some: whether experts are missing, whose ids are E (`held_only`); they
    contribute nothing.
    """
    if grouped_mm_takes(x_TD, gate_up_EXD, down_EDI):
        return run_grouped(x_TD, gate_up_EXD, down_EDI, weight_TK, expert_TK, some)
    return run_every_expert(x_TD, gate_up_EXD, down_EDI, weight_TK, expert_TK)


def run_grouped(
    x_TD: Tensor, gate_up_EXD: Tensor, down_EDI: Tensor, weight_TK: Tensor, expert_TK: Tensor, some: bool = False
) -> Tensor:
    """Sorts the pairs by expert, and multiplies each expert's pairs together. Pairs of missing experts come last, and are not
    computed."""
    expert_S, order_S = expert_TK.flatten().sort(stable=True)
    experts_E = torch.arange(down_EDI.shape[0], device=x_TD.device)
    # The end of each expert's pairs. A histogram would synchronize with the host for its length.
    ends_E = torch.searchsorted(expert_S, experts_E, right=True, out_int32=True)
    x_SD = x_TD.index_select(0, order_S // expert_TK.shape[1])
    gate_SI, up_SI = F.grouped_mm(x_SD, gate_up_EXD.mT, offs=ends_E).chunk(2, dim=-1)
    y_SD = F.grouped_mm(F.silu(gate_SI) * up_SI, down_EDI.mT, offs=ends_E)
    # Back in token order before the sum: atomic adds would change the bits from run to run.
    y_TKD = torch.empty_like(y_SD).index_copy_(0, order_S, y_SD).unflatten(0, expert_TK.shape)
    if some:  # `grouped_mm` leaves their rows uninitialized
        y_TKD = y_TKD.masked_fill((expert_TK == down_EDI.shape[0])[..., None], 0)
    y_TD: Tensor = (y_TKD * weight_TK[..., None]).sum(1)
    return y_TD.to(x_TD.dtype)


def run_every_expert(
    x_TD: Tensor, gate_up_EXD: Tensor, down_EDI: Tensor, weight_TK: Tensor, expert_TK: Tensor
) -> Tensor:
    """Computes every expert for every token: wasteful, but finding idle experts would synchronize with the device."""
    y_TD = torch.zeros_like(x_TD, dtype=torch.float32)
    for expert in range(down_EDI.shape[0]):
        gate_TI, up_TI = F.linear(x_TD, gate_up_EXD[expert]).chunk(2, dim=-1)
        expert_TD = F.linear(F.silu(gate_TI) * up_TI, down_EDI[expert])
        chosen_TK = expert_TK == expert
        weight_T1 = weight_TK.masked_fill(~chosen_TK, 0).sum(1, keepdim=True)
        # Masked, not multiplied by zero: an unchosen expert's output may overflow.
        y_TD += (expert_TD * weight_T1).masked_fill(~chosen_TK.any(1, keepdim=True), 0)
    return y_TD.to(x_TD.dtype)


def grouped_mm_takes(x: Tensor, *weights: Tensor) -> bool:
    """Whether `grouped_mm` supports these: bf16, on the CPU fp32 too, and rows that are multiples of 16 bytes."""
    dtypes = (torch.bfloat16,) if x.is_cuda else (torch.bfloat16, torch.float32)
    aligned = all(weight.shape[-1] * weight.element_size() % _ALIGNMENT_BYTES == 0 for weight in weights)
    return x.dtype in dtypes and aligned
