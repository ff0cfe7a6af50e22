"""Kernels against float64."""

import pytest
import torch
from torch import Tensor

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Where kernels run: on the CPU under the interpreter, which computes fp32 right and bf16 not."""

DTYPES = [
    torch.float32,
    pytest.param(torch.bfloat16, marks=pytest.mark.gpu),
    pytest.param(torch.float16, marks=pytest.mark.gpu),
]

# A few roundings of the dtype, relative to the largest element of a row.
_ROUNDINGS = 4


def assert_near(ours: Tensor, exact: Tensor) -> None:
    """`ours` is `exact`, in float64, but for a few roundings of its dtype along the last dimension. NaN is near nothing."""
    assert ours.shape == exact.shape
    scale = exact.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    worst = ((ours.double() - exact).abs() / scale).amax() if ours.numel() else torch.zeros(())
    assert worst <= _ROUNDINGS * torch.finfo(ours.dtype).eps, f"off by {worst:.2e} of a row's largest element"
