"""Sparse mixture of experts: softmax router, top-k, gated experts.

Shape legend: T tokens, D width, E experts, K experts per token, I intermediate width.
"""

from typing import Unpack

import torch
from torch import Tensor, nn

from omni.checkpoint import Destination, StackedWeights
from omni_ar.kernels.moe import Experts, Norm, SharedExpert, mix_experts
from omni_ar.layers.linear import Factory, GatedMLP, RMSNorm
from omni_ar.layers.parallel import communicator, partitioned, width_cut


class SparseMoE(nn.Module, StackedWeights):
    """Sends each token through its `top_k` experts, weighted by the router. norm_topk: whether a token's weights are scaled to sum
    to 1. Parameters: `gate.weight` `[E, D]`, `experts_gate_up` `[E, 2I, D]` (gate rows first), `experts_down` `[E, D, I]`. In a
    partition, each rank has a part of every expert's intermediate width, and the router is whole."""

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
        self._rows, self._columns = width_cut(intermediate, 0), width_cut(intermediate, 1)
        self._communicator = communicator() if self._rows is not None else None
        held = self._rows.length if self._rows is not None else intermediate
        self.gate = nn.Linear(width, num_experts, bias=False, **factory)
        self.experts_gate_up = _weight(num_experts, 2 * held, width, **factory)
        self.experts_down = _weight(num_experts, width, held, **factory)

    def forward(self, x_TD: Tensor) -> Tensor:
        """`[T, D]`, T at least 1, to `[T, D]`."""
        y_TD, _ = self._mix(x_TD, None, None)
        return y_TD

    def fused_mlp(self, norm: RMSNorm, x_TD: Tensor, delta_TD: Tensor | None) -> tuple[Tensor, Tensor]:
        return self._mix(x_TD, delta_TD, Norm(norm.weight, norm.eps))

    def _mix(self, x_TD: Tensor, delta_TD: Tensor | None, norm: Norm | None) -> tuple[Tensor, Tensor]:
        weights = (self.gate.weight, self.experts_gate_up, self.experts_down)
        experts = Experts(*weights, self.top_k, self.norm_topk, self._shared())
        if self._communicator is None:
            return mix_experts(x_TD, delta_TD, norm, experts)
        y_TD, x_TD = mix_experts(x_TD, delta_TD, norm, experts)
        return self._communicator.all_reduce(y_TD), x_TD

    def stacked_weights(self, name: str) -> dict[str, Destination]:
        """Published names: `experts.<i>.gate_proj.weight` and `.up_proj.weight`, `[I, D]`, and `.down_proj.weight`, `[D, I]`."""
        prefix, inner = f"{name}." if name else "", self.experts_down.shape[2]
        destinations: dict[str, Destination] = {}
        for expert in range(self.experts_down.shape[0]):
            for part, parameter, index, cut in (
                ("gate", "experts_gate_up", (expert, slice(0, inner)), self._rows),
                ("up", "experts_gate_up", (expert, slice(inner, 2 * inner)), self._rows),
                ("down", "experts_down", (expert,), self._columns),
            ):
                published = f"{prefix}experts.{expert}.{part}_proj.weight"
                destinations[published] = Destination(f"{prefix}{parameter}", index, cut)
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
        # Their outputs are summed before the ranks' parts are: all experts are cut, or none.
        cut = all(width_cut(size, 0) is not None for size in (intermediate, shared_intermediate))
        with partitioned(communicator() if cut else None):
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
