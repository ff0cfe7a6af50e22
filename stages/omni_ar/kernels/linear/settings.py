"""Which kernel computes a linear map, and with which settings: what was measured to be faster than cuBLAS."""

from torch import Tensor

from omni_ar.kernels.tuning import Config, tuned

MOST_ROWS = 64
_LIBRARY: Config = {}
"""Settings of shapes that cuBLAS computes faster."""


def settings(kind: str, x_TD: Tensor, weight_ND: Tensor) -> Config | None:
    """Settings with `tile_n` are the tiled kernel's, others the streaming one's; None where cuBLAS is faster or nobody measured,
    for kinds with a norm also where the norm is better a kernel of its own.

    kind: `linear`, `gated`, `norm_linear` or `norm_gated`.
    """
    rows = x_TD.shape[0]
    if not 0 < rows <= MOST_ROWS:
        return None
    return tuned("linear", x_TD.device, key(kind, weight_ND), rows, _LIBRARY) or None


def key(kind: str, weight_ND: Tensor) -> str:
    """A shape's key in the table. kind: as for `settings`."""
    outputs, width = weight_ND.shape
    return f"{kind}-N{outputs}-D{width}-{str(weight_ND.dtype).removeprefix('torch.')}"
