"""Sparse mixture of experts: softmax router, top-k, gated experts.

Shape legend: T tokens, D width, E experts, K experts per token, I intermediate width, S = T * K (token, expert) pairs
sorted by expert.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from omni_ar.layers.mlp import GatedMLP

_ALIGNMENT_BYTES = 16


class SparseMoE(nn.Module):
    """Each token through its `top_k` experts, weighted by the router.

    norm_topk: whether a token's weights are scaled to sum to 1.
    Parameters: `gate.weight` `[E, D]`, `experts_gate_up` `[E, 2I, D]` (gate rows first), `experts_down` `[E, D, I]`.
    """

    def __init__(
        self,
        width: int,
        intermediate: int,
        num_experts: int,
        top_k: int,
        norm_topk: bool,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.top_k = top_k
        self.norm_topk = norm_topk
        self.gate = nn.Linear(width, num_experts, bias=False, device=device, dtype=dtype)
        self.experts_gate_up = _weight(num_experts, 2 * intermediate, width, device, dtype)
        self.experts_down = _weight(num_experts, width, intermediate, device, dtype)

    def forward(self, x_TD: Tensor) -> Tensor:
        """`[T, D]`, T at least 1, to `[T, D]`."""
        weight_TK, expert_TK = self._route(x_TD)
        if _grouped_mm_takes(x_TD, self.experts_gate_up, self.experts_down):
            return self._run_grouped(x_TD, weight_TK, expert_TK)
        return self._run_every_expert(x_TD, weight_TK, expert_TK)

    def _route(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        logits_TE: Tensor = self.gate(x_TD)
        weight_TK, expert_TK = logits_TE.softmax(-1, dtype=torch.float32).topk(self.top_k, dim=-1)
        if self.norm_topk:
            weight_TK = weight_TK / weight_TK.sum(-1, keepdim=True)
        return weight_TK.to(x_TD.dtype), expert_TK

    def _run_grouped(self, x_TD: Tensor, weight_TK: Tensor, expert_TK: Tensor) -> Tensor:
        expert_S, order_S = expert_TK.flatten().sort(stable=True)
        experts_E = torch.arange(self.experts_down.shape[0], device=x_TD.device)
        # Where each expert's pairs end. A histogram would have to tell the host how long it is.
        ends_E = torch.searchsorted(expert_S, experts_E, right=True, out_int32=True)
        x_SD = x_TD.index_select(0, order_S // self.top_k)
        gate_SI, up_SI = F.grouped_mm(x_SD, self.experts_gate_up.mT, offs=ends_E).chunk(2, dim=-1)
        y_SD = F.grouped_mm(F.silu(gate_SI) * up_SI, self.experts_down.mT, offs=ends_E)
        # Back in token order before the sum: atomic adds would give other bits from run to run.
        y_TKD = torch.empty_like(y_SD).index_copy_(0, order_S, y_SD).unflatten(0, expert_TK.shape)
        y_TD: Tensor = (y_TKD * weight_TK[..., None]).sum(1)
        return y_TD

    def _run_every_expert(self, x_TD: Tensor, weight_TK: Tensor, expert_TK: Tensor) -> Tensor:
        # Every token through every expert: wasteful, but which experts are idle is not known without asking the device.
        y_TD = torch.zeros_like(x_TD)
        for expert in range(self.experts_down.shape[0]):
            gate_TI, up_TI = F.linear(x_TD, self.experts_gate_up[expert]).chunk(2, dim=-1)
            expert_TD = F.linear(F.silu(gate_TI) * up_TI, self.experts_down[expert])
            chosen_TK = expert_TK == expert
            weight_T1 = weight_TK.masked_fill(~chosen_TK, 0).sum(1, keepdim=True)
            # Not merely times zero: what an expert makes of a token it was not meant for may overflow.
            y_TD += (expert_TD * weight_T1).masked_fill(~chosen_TK.any(1, keepdim=True), 0)
        return y_TD


class SharedExpertMoE(SparseMoE):
    """`SparseMoE` plus one expert for every token, scaled by a sigmoid gate.

    Further parameters: `shared_expert` (a `GatedMLP`) and `shared_expert_gate.weight` `[1, D]`.
    """

    def __init__(
        self,
        width: int,
        intermediate: int,
        num_experts: int,
        top_k: int,
        norm_topk: bool,
        shared_intermediate: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(width, intermediate, num_experts, top_k, norm_topk, device=device, dtype=dtype)
        self.shared_expert = GatedMLP(width, shared_intermediate, device=device, dtype=dtype)
        self.shared_expert_gate = nn.Linear(width, 1, bias=False, device=device, dtype=dtype)

    def forward(self, x_TD: Tensor) -> Tensor:
        """`[T, D]`, T at least 1, to `[T, D]`."""
        shared_TD: Tensor = F.sigmoid(self.shared_expert_gate(x_TD)) * self.shared_expert(x_TD)
        return super().forward(x_TD) + shared_TD


def _weight(
    experts: int, outputs: int, inputs: int, device: torch.device | str | None, dtype: torch.dtype | None
) -> nn.Parameter:
    weight = nn.Parameter(torch.empty(experts, outputs, inputs, device=device, dtype=dtype))
    bound = inputs**-0.5  # as nn.Linear
    nn.init.uniform_(weight, -bound, bound)
    return weight


def _grouped_mm_takes(x: Tensor, *weights: Tensor) -> bool:
    """Whether `grouped_mm` supports these: bf16, on the CPU fp32 too, and rows that are multiples of 16 bytes."""
    dtypes = (torch.bfloat16,) if x.is_cuda else (torch.bfloat16, torch.float32)
    aligned = all(weight.shape[-1] * weight.element_size() % _ALIGNMENT_BYTES == 0 for weight in weights)
    return x.dtype in dtypes and aligned
