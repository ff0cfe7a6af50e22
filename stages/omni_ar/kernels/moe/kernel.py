"""A mixture on a GPU: few rows separately, many rows grouped by expert."""

from torch import Tensor

from omni_ar.kernels.moe.experts import Experts, Norm
from omni_ar.kernels.moe.few import mix_few
from omni_ar.kernels.moe.grouped import mix_grouped
from omni_ar.kernels.moe.settings import FewSettings, settings


def mix_experts(x_TD: Tensor, delta_TD: Tensor | None, norm: Norm | None, experts: Experts) -> tuple[Tensor, Tensor]:
    """See `mix_experts` of the package."""
    chosen = settings(x_TD, experts.down_EDI, experts.top_k, experts.num_experts)
    if isinstance(chosen, FewSettings):
        return mix_few(x_TD, delta_TD, norm, experts, chosen)
    return mix_grouped(x_TD, delta_TD, norm, experts, chosen)
