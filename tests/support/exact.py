"""Kernels against float64."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Where kernels run: on the CPU under the interpreter, which computes fp32 right and bf16 not."""

DTYPES = [
    pytest.param(torch.float32, id="fp32"),
    pytest.param(torch.bfloat16, id="bf16", marks=pytest.mark.gpu),
    pytest.param(torch.float16, id="fp16", marks=pytest.mark.gpu),
]


def served(*values: object) -> Any:
    """Parameters of a small case whose tiles fill their blocks, as those of served shapes do: what racecheck looks at."""
    return pytest.param(*values, id="served", marks=pytest.mark.gpu)


def drawn(shape: Callable[[Random], tuple[int, ...]], count: int = 4) -> list[tuple[int, ...]]:
    """Random small shapes, the same in every run."""
    return [shape(Random(seed)) for seed in range(count)]


# A few roundings of the dtype, relative to the largest element of a row.
_ROUNDINGS = 4


def assert_near(ours: Tensor, exact: Tensor) -> None:
    """`ours` is `exact`, in float64, but for a few roundings of its dtype along the last dimension. NaN is near no value."""
    assert ours.shape == exact.shape
    scale = exact.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    worst = ((ours.double() - exact).abs() / scale).amax() if ours.numel() else torch.zeros(())
    assert worst <= _ROUNDINGS * torch.finfo(ours.dtype).eps, f"off by {worst:.2e} of a row's largest element"
