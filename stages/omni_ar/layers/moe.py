"""Sparse mixture of experts: softmax router, top-k, gated experts.

Shape legend: T tokens, D width, E experts, K experts per token, I intermediate width.
"""

from typing import Unpack

import torch
from torch import Tensor, nn

from omni.checkpoint import Destination, StackedWeights
from omni_ar.kernels.moe import Experts, Norm, SharedExpert, mix_experts
from omni_ar.layers.linear import Factory, GatedMLP, RMSNorm


class SparseMoE(nn.Module, StackedWeights):
    """Sends each token through its `top_k` experts, weighted by the router. norm_topk: whether a token's weights are scaled to sum
    to 1. Parameters: `gate.weight` `[E, D]`, `experts_gate_up` `[E, 2I, D]` (gate rows first), `experts_down` `[E, D, I]`."""

    def __init__(
        self,
        width: int,
        intermediate: int,
        num_experts: int,
        top_k: int,
        norm_topk: bool,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__()
        self.top_k = top_k
        self.norm_topk = norm_topk
        self.gate = nn.Linear(width, num_experts, bias=False, **factory)
        self.experts_gate_up = _weight(num_experts, 2 * intermediate, width, **factory)
        self.experts_down = _weight(num_experts, width, intermediate, **factory)

    def forward(self, x_TD: Tensor) -> Tensor:
        """`[T, D]`, T at least 1, to `[T, D]`."""
        y_TD, _ = self._mix(x_TD, None, None)
        return y_TD

    def fused_mlp(self, norm: RMSNorm, x_TD: Tensor, delta_TD: Tensor | None) -> tuple[Tensor, Tensor]:
        return self._mix(x_TD, delta_TD, Norm(norm.weight, norm.eps))

    def _mix(self, x_TD: Tensor, delta_TD: Tensor | None, norm: Norm | None) -> tuple[Tensor, Tensor]:
        weights = (self.gate.weight, self.experts_gate_up, self.experts_down)
        experts = Experts(*weights, self.top_k, self.norm_topk, self._shared())
        return mix_experts(x_TD, delta_TD, norm, experts)

    def stacked_weights(self, name: str) -> dict[str, Destination]:
        """Published names: `experts.<i>.gate_proj.weight` and `.up_proj.weight`, `[I, D]`, and `.down_proj.weight`, `[D, I]`."""
        prefix, inner = f"{name}." if name else "", self.experts_down.shape[2]
        destinations: dict[str, Destination] = {}
        for expert in range(self.experts_down.shape[0]):
            for part, parameter, index in (
                ("gate", "experts_gate_up", (expert, slice(0, inner))),
                ("up", "experts_gate_up", (expert, slice(inner, 2 * inner))),
                ("down", "experts_down", (expert,)),
            ):
                published = f"{prefix}experts.{expert}.{part}_proj.weight"
                destinations[published] = Destination(f"{prefix}{parameter}", index)
        return destinations

    def _shared(self) -> SharedExpert | None:
        return None


class SharedExpertMoE(SparseMoE):
    """`SparseMoE` plus one expert for every token, scaled by a sigmoid gate. Further parameters: `shared_expert` (a `GatedMLP`) and
    `shared_expert_gate.weight` `[1, D]`."""

    def __init__(
        self,
        width: int,
        intermediate: int,
        num_experts: int,
        top_k: int,
        norm_topk: bool,
        shared_intermediate: int,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__(width, intermediate, num_experts, top_k, norm_topk, **factory)
        self.shared_expert = GatedMLP(width, shared_intermediate, **factory)
        self.shared_expert_gate = nn.Linear(width, 1, bias=False, **factory)

    def _shared(self) -> SharedExpert:
        expert = self.shared_expert
        return SharedExpert(expert.gate_up_proj.weight, expert.down_proj.weight, self.shared_expert_gate.weight)


def _weight(experts: int, outputs: int, inputs: int, **factory: Unpack[Factory]) -> nn.Parameter:
    weight = nn.Parameter(torch.empty(experts, outputs, inputs, **factory))
    bound = inputs**-0.5  # as nn.Linear
    nn.init.uniform_(weight, -bound, bound)
    return weight
