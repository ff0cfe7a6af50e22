"""The sine of `SnakeBeta` within a kernel against float64."""

import math

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from omni_frames.kernels.snake import sine_of_half_turns
from tests.support.exact import HERE


@triton.jit
def squares(x_ptr, out_ptr, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    sine = sine_of_half_turns(tl.load(x_ptr + at))
    tl.store(out_ptr + at, sine * sine)


def test_squares_of_sines_are_exact_up_to_many_turns() -> None:
    noise = torch.Generator().manual_seed(0)
    sizes = torch.logspace(-3, math.log10(2**15 * math.pi), 1024)
    x = (sizes * torch.rand(1024, generator=noise).mul(2).sub(1)).to(HERE)
    out = torch.empty_like(x)
    squares[(1,)](x, out, COUNT=1024)
    assert (out.double() - x.double().sin().square()).abs().max() < 1e-6
