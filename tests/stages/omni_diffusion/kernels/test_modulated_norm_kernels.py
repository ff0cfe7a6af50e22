"""The norm with gate, scale and shift of the row against float64. Shapes as in the package."""

from random import Random

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from omni_diffusion.kernels.modulated_norm import EPS, Residual, kernel, reference
from tests.support.exact import DTYPES, HERE, assert_near, drawn, served

Shape = tuple[int, int, int, int]
"""Branches, rows, frames, width."""


def odd(random: Random) -> Shape:
    return random.randint(1, 2), random.randint(1, 4), random.randint(1, 7), random.randint(2, 70)


def drawn_case(shape: Shape, dtype: torch.dtype) -> tuple[Tensor, Residual, Tensor, Tensor]:
    """Input, residual, scale and shift; the three by rows lie in one tensor, as those of a layer do."""
    _, rows, _, width = shape
    noise = torch.Generator().manual_seed(sum(shape))
    x_UBTD, branch_UBTD = (torch.randn(shape, generator=noise).to(HERE, dtype) for _ in range(2))
    gate_BD, scale_BD, shift_BD = torch.randn(rows, 3, width, generator=noise).to(HERE, dtype).unbind(1)
    return x_UBTD + 3, Residual(branch_UBTD, gate_BD), scale_BD, shift_BD


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*drawn(odd, 6), served((2, 3, 24, 1024))])
def test_sums_and_norms(shape: Shape, dtype: torch.dtype) -> None:
    x_UBTD, residual, scale_BD, shift_BD = drawn_case(shape, dtype)
    for added in (None, residual):
        normed_UBTD, sum_UBTD = kernel.modulated_norm(x_UBTD, added, scale_BD, shift_BD, EPS)
        wide = None if added is None else (added.branch_UBTD.double(), added.gate_BD.double())
        _, exact_sum = reference.modulated_norm(x_UBTD.double(), wide, scale_BD.double(), shift_BD.double(), EPS)
        assert_near(sum_UBTD, exact_sum)
        # The norm reads the rounded sum.
        exact, _ = reference.modulated_norm(sum_UBTD.double(), None, scale_BD.double(), shift_BD.double(), EPS)
        assert_near(normed_UBTD, exact)


def test_rows_do_not_depend_on_each_other() -> None:
    x_UBTD, residual, scale_BD, shift_BD = drawn_case((2, 3, 5, 8), torch.float32)
    before = kernel.modulated_norm(x_UBTD, residual, scale_BD, shift_BD, EPS)
    for changed in (x_UBTD[:, 1], residual.branch_UBTD[:, 1], residual.gate_BD[1], scale_BD[1], shift_BD[1]):
        changed.fill_(float("nan"))
        after = kernel.modulated_norm(x_UBTD, residual, scale_BD, shift_BD, EPS)
        for old, new in zip(before, after, strict=True):
            assert torch.equal(old[:, [0, 2]], new[:, [0, 2]])


def test_the_input_stays() -> None:
    x_UBTD, residual, scale_BD, shift_BD = drawn_case((1, 2, 3, 5), torch.float32)
    kept = x_UBTD.clone()
    normed_UBTD, sum_UBTD = kernel.modulated_norm(x_UBTD, residual, scale_BD, shift_BD, EPS)
    assert torch.equal(x_UBTD, kept)
    assert normed_UBTD.isfinite().all()
    assert not torch.equal(sum_UBTD, x_UBTD)
