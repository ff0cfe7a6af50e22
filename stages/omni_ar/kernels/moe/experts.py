"""The weights of a mixture of experts, as arguments of its operations."""

from typing import NamedTuple

from torch import Tensor


class SharedExpert(NamedTuple):
    """An expert for every token, scaled by `sigmoid(x @ gate.T)`.

    gate_up_XD: `[2 * its intermediate width, D]`, gate rows first. down_DI: `[D, its intermediate width]`. gate_1D: `[1, D]`.
    """

    gate_up_XD: Tensor
    down_DI: Tensor
    gate_1D: Tensor


class Experts(NamedTuple):
    """The weights of a layer of experts. router_ED: `[E, D]`. gate_up_EXD: `[E, 2I, D]`, gate rows first. down_EDI: `[E, D, I]`.
    All contiguous and of one dtype.

    norm_topk: whether a token's weights are scaled to sum to 1. first: gate_up_EXD and down_EDI may hold a part of the experts,
    those from `first` on. The router is whole, and weights are those of the whole mixture; experts that are not held contribute
    nothing to the sum.
    """

    router_ED: Tensor
    gate_up_EXD: Tensor
    down_EDI: Tensor
    top_k: int
    norm_topk: bool
    shared: SharedExpert | None = None
    first: int = 0

    @property
    def num_experts(self) -> int:
        """Experts that the router chooses from."""
        return self.router_ED.shape[0]

    @property
    def num_held(self) -> int:
        return self.down_EDI.shape[0]


class Norm(NamedTuple):
    """The RMSNorm before the experts. weight_D: `[D]`."""

    weight_D: Tensor
    eps: float
