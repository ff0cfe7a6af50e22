"""The norm with gate, scale and shift of the row against float64. Shapes as in the package."""

from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from omni.device.kernel_choice import kernels_of, plain_torch
from omni_diffusion.kernels.modulated_norm import EPS, GatedBranch, kernel, modulated_norm, reference
from tests.support.exact import DTYPES, HERE, assert_near, drawn, served

Shape = tuple[int, int, int, int]
"""Branches, rows, frames, width."""


def odd(random: Random) -> Shape:
    return random.randint(1, 2), random.randint(1, 4), random.randint(1, 7), random.randint(2, 70)


def drawn_case(shape: Shape, dtype: torch.dtype) -> tuple[Tensor, GatedBranch, Tensor, Tensor]:
    """Input, residual, scale and shift. Rows of gate, scale and shift lie apart, by different strides."""
    _, rows, _, width = shape
    noise = torch.Generator().manual_seed(sum(shape))
    x_UBTD, branch_UBTD = (torch.randn(shape, generator=noise).to(HERE, dtype) for _ in range(2))
    gate_BD, scale_BD, shift_BD = (
        torch.randn(rows, parts, width, generator=noise).to(HERE, dtype)[:, -1] for parts in (3, 2, 1)
    )
    return x_UBTD + 3, GatedBranch(branch_UBTD, gate_BD), scale_BD, shift_BD


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


def test_the_width_may_be_another_dimension_in_memory() -> None:
    x_UBTD, residual, scale_BD, shift_BD = drawn_case((2, 3, 4, 6), torch.float32)
    apart_UBTD = x_UBTD.transpose(2, 3).contiguous().transpose(2, 3)
    with kernels_of(torch.device("cuda")):
        ours = modulated_norm(apart_UBTD, residual, scale_BD, shift_BD)
    expected = kernel.modulated_norm(x_UBTD, residual, scale_BD, shift_BD, EPS)
    assert all(map(torch.equal, ours, expected))


def test_which_inputs_have_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """float64 runs in torch on every device, and all in `plain_torch()`."""
    ran: list[torch.dtype] = []
    monkeypatch.setattr(kernel, "modulated_norm", lambda x_UBTD, *_: ran.append(x_UBTD.dtype))
    x_UBTD, _, scale_BD, shift_BD = drawn_case((1, 2, 3, 5), torch.float32)
    with kernels_of(torch.device("cuda")):
        modulated_norm(x_UBTD, None, scale_BD, shift_BD)
        with plain_torch():
            modulated_norm(x_UBTD, None, scale_BD, shift_BD)
        modulated_norm(x_UBTD.double(), None, scale_BD.double(), shift_BD.double())
    assert ran == [torch.float32]


def test_the_norm_reads_the_rounded_sum() -> None:
    """Near 2048, float16 has every other whole number: what is added is lost, so nothing is left to normalize."""
    on: Any = {"dtype": torch.float16, "device": HERE}
    x_UBTD, branch_UBTD = torch.full((1, 1, 1, 16), 2048.0, **on), torch.rand(1, 1, 1, 16, **on)
    gate_BD, scale_BD, shift_BD = torch.full((3, 1, 16), 0.9, **on).unbind()
    normed_UBTD, sum_UBTD = kernel.modulated_norm(x_UBTD, GatedBranch(branch_UBTD, gate_BD), scale_BD, shift_BD, EPS)
    assert torch.equal(sum_UBTD, x_UBTD)
    assert torch.equal(normed_UBTD[0, 0], shift_BD)
