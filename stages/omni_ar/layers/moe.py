"""Sparse mixture of experts: softmax router, top-k, gated experts.

Shape legend: T tokens, D width, E experts, K experts per token, I intermediate width.
"""

from contextlib import nullcontext
from typing import Unpack

import torch
from torch import Tensor, nn

from omni.checkpoint import Cut, Destination, StackedWeights
from omni_ar.kernels.moe import Experts, Norm, SharedExpert, mix_experts
from omni_ar.kernels.norm import Delta, PartialSum
from omni_ar.layers.linear import FactoryKwargs, GatedMLP, RMSNorm
from omni_ar.layers.parallel import communicator, held_experts, whole, width_cut


class SparseMoE(nn.Module, StackedWeights):
    """Sends each token through its `top_k` experts, weighted by the router. norm_topk: whether a token's weights are scaled to sum
    to 1. Parameters: `gate.weight` `[E, D]`, `experts_gate_up` `[E, 2I, D]` (gate rows first), `experts_down` `[E, D, I]`. In a
    partition, each rank has a part of every expert's intermediate width, or some of the experts whole (`held_experts`), and the
    router is whole."""

    def __init__(
        self,
        width: int,
        intermediate: int,
        num_experts: int,
        top_k: int,
        norm_topk: bool,
        **factory: Unpack[FactoryKwargs],
    ) -> None:
        super().__init__()
        self.top_k = top_k
        self.norm_topk = norm_topk
        own = held_experts(num_experts)
        self._rows = width_cut(intermediate, 0) if own is None else None
        self._columns = width_cut(intermediate, 1) if own is None else None
        self._held = own if own is not None else range(num_experts)
        self._communicator = communicator() if own is not None or self._rows is not None else None
        held = self._rows.length if self._rows is not None else intermediate
        self.gate = nn.Linear(width, num_experts, bias=False, **factory)
        self.experts_gate_up = _weight(len(self._held), 2 * held, width, **factory)
        self.experts_down = _weight(len(self._held), width, held, **factory)

    @property
    def is_cut(self) -> bool:
        return self._communicator is not None

    @property
    def num_experts(self) -> int:
        """Number of experts, including those of other ranks."""
        return self.gate.out_features

    @property
    def is_divided(self) -> bool:
        """Whether other ranks hold some of the experts."""
        return len(self._held) < self.num_experts

    def forward(self, x_TD: Tensor) -> Tensor:
        """`[T, D]`, T at least 1, to `[T, D]`."""
        y_TD, _ = mix_experts(x_TD, None, None, self._experts())
        return y_TD if self._communicator is None else self._communicator.all_reduce(y_TD)

    def fused_mlp(self, norm: RMSNorm, x_TD: Tensor, delta_TD: Delta | None) -> tuple[Delta, Tensor]:
        y_TD, x_TD = mix_experts(x_TD, delta_TD, Norm(norm.weight, norm.eps), self._experts())
        return (y_TD if self._communicator is None else PartialSum(y_TD, self._communicator)), x_TD

    def stacked_weights(self, name: str) -> dict[str, Destination]:
        """Published names: `experts.<i>.gate_proj.weight` and `.up_proj.weight`, `[I, D]`, and `.down_proj.weight`, `[D, I]`. This
        rank holds an empty part of the weights of other ranks."""
        prefix, (width, inner) = f"{name}." if name else "", self.experts_down.shape[1:]
        destinations: dict[str, Destination] = {}
        for expert in range(self.gate.out_features):
            index = expert - self._held.start
            for part, parameter, rows, cut in (
                ("gate", "experts_gate_up", slice(0, inner), self._rows),
                ("up", "experts_gate_up", slice(inner, 2 * inner), self._rows),
                ("down", "experts_down", slice(0, width), self._columns),
            ):
                place = Destination(f"{prefix}{parameter}", (index, rows), cut)
                if expert not in self._held:
                    place = Destination(place.parameter, (0, slice(0, 0)), Cut(0, 0, 0, rows.stop - rows.start))
                destinations[f"{prefix}experts.{expert}.{part}_proj.weight"] = place
        return destinations

    def _experts(self) -> Experts:
        weights = (self.gate.weight, self.experts_gate_up, self.experts_down)
        return Experts(*weights, self.top_k, self.norm_topk, self._shared(), self._held.start)

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
        **factory: Unpack[FactoryKwargs],
    ) -> None:
        # The outputs of experts are added before the ranks' parts are: either all experts are cut or none.
        by_expert = held_experts(num_experts) is not None
        cut = width_cut(shared_intermediate, 0) is not None and (by_expert or width_cut(intermediate, 0) is not None)
        with nullcontext() if cut else whole():
            super().__init__(width, intermediate, num_experts, top_k, norm_topk, **factory)
            self.shared_expert = GatedMLP(width, shared_intermediate, **factory)
        self.shared_expert_gate = nn.Linear(width, 1, bias=False, **factory)

    def _shared(self) -> SharedExpert:
        expert = self.shared_expert
        return SharedExpert(expert.gate_up_proj.weight, expert.down_proj.weight, self.shared_expert_gate.weight)


def _weight(experts: int, outputs: int, inputs: int, **factory: Unpack[FactoryKwargs]) -> nn.Parameter:
    weight = nn.Parameter(torch.empty(experts, outputs, inputs, **factory))
    bound = inputs**-0.5  # as nn.Linear
    nn.init.uniform_(weight, -bound, bound)
    return weight
