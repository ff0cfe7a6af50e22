"""The addition of a branch and the norm after it, against float64. Shapes as in the package."""

from random import Random

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from omni.device.kernel_choice import kernels_of, plain_torch
from omni_vocoder.kernels.residual_norm import Branch, kernel, reference, residual_norm
from omni_vocoder.layers import RMSNorm
from omni_vocoder.layers.transformer import LayerScale, add_and_norm
from tests.support.exact import DTYPES, HERE, assert_near, drawn, served

Shape = tuple[int, ...]
"""B, T, D."""
EPS = 0.01


def odd(random: Random) -> Shape:
    return random.randint(1, 3), random.randint(1, 5), random.randint(1, 70)


class Case:
    """Random tensors, of positions of different sizes."""

    def __init__(self, shape: Shape, dtype: torch.dtype = torch.float32, device: torch.device = HERE) -> None:
        noise = torch.Generator().manual_seed(sum(shape))

        def drawn(*sizes: int) -> Tensor:
            return torch.randn(sizes, generator=noise).to(device, dtype)

        size = drawn(*shape[:2], 1).exp()
        self.hidden, self.weight = drawn(*shape) * size, drawn(shape[2])
        self.branch = Branch(drawn(*shape) * size, drawn(shape[2]))

    def exact_sum(self) -> Tensor:
        return self.hidden.double() + self.branch.scale_D.double() * self.branch.output_BTD.double()

    def exact_norm(self, hidden: Tensor) -> Tensor:
        exact = hidden.double()
        return self.weight.double() * exact / (exact.square().mean(-1, keepdim=True) + EPS).sqrt()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*drawn(odd, 6), served((2, 25, 1024))])
def test_sums_and_norms(shape: Shape, dtype: torch.dtype) -> None:
    case = Case(shape, dtype)
    hidden, branch = case.hidden.clone(), case.branch.output_BTD.clone()
    summed, normed = kernel.residual_norm(case.hidden, case.weight, EPS, case.branch)
    assert_near(summed, case.exact_sum())
    # Of the sum as it is rounded.
    assert_near(normed, case.exact_norm(summed))
    alone, normed = kernel.residual_norm(case.hidden, case.weight, EPS, None)
    assert alone is case.hidden
    assert_near(normed, case.exact_norm(case.hidden))
    assert torch.equal(case.hidden, hidden)
    assert torch.equal(case.branch.output_BTD, branch)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sums_are_rounded_as_those_of_separate_operations(dtype: torch.dtype) -> None:
    case = Case((5, 40, 1024), dtype)
    summed, _ = kernel.residual_norm(case.hidden, case.weight, EPS, case.branch)
    assert torch.equal(summed, reference.residual_norm(case.hidden, case.weight, EPS, case.branch)[0])


def test_positions_do_not_depend_on_each_other() -> None:
    case = Case((2, 3, 20))
    before = kernel.residual_norm(case.hidden, case.weight, EPS, case.branch)
    case.hidden[0, 1] = case.branch.output_BTD[1, 0] = float("nan")
    after = kernel.residual_norm(case.hidden, case.weight, EPS, case.branch)
    for found, expected in zip(after, before, strict=True):
        assert found[0, 1].isnan().all()
        assert found[1, 0].isnan().all()
        for position in ((0, 0), (0, 2), (1, 1), (1, 2)):
            assert torch.equal(found[position], expected[position])


def test_hidden_states_may_be_transposed() -> None:
    case = Case((2, 5, 6))
    expected = kernel.residual_norm(case.hidden, case.weight, EPS, case.branch)
    turned = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in (case.hidden, case.branch.output_BTD)]
    found = kernel.residual_norm(turned[0], case.weight, EPS, Branch(turned[1], case.branch.scale_D))
    assert torch.equal(torch.stack(found), torch.stack(expected))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_reference_is_exact(dtype: torch.dtype) -> None:
    """In float32."""
    case = Case((2, 5, 12), dtype, torch.device("cpu"))
    summed, normed = residual_norm(case.hidden, case.weight, EPS, case.branch)
    assert_near(summed, case.exact_sum())
    torch.testing.assert_close(normed.double(), case.exact_norm(summed), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(residual_norm(case.hidden, case.weight, EPS)[0], case.hidden, rtol=0, atol=0)


def test_which_sums_have_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """float64 runs in torch on every device, and all in `plain_torch()`."""
    ran: list[torch.dtype] = []
    monkeypatch.setattr(kernel, "residual_norm", lambda hidden, *_: ran.append(hidden.dtype))
    for dtype in (torch.float32, torch.float64):
        case = Case((1, 2, 3), dtype)
        with kernels_of(torch.device("cuda")):
            residual_norm(case.hidden, case.weight, EPS, case.branch)
            with plain_torch():
                residual_norm(case.hidden, case.weight, EPS, case.branch)
    assert ran == [torch.float32]


class Doubled(RMSNorm):
    """Of a plugin."""

    def forward(self, hidden: Tensor) -> Tensor:
        return 2 * super().forward(hidden)


@torch.no_grad()
@pytest.mark.parametrize("make", [RMSNorm, Doubled, nn.LayerNorm])
def test_any_norm_may_follow_a_branch(make: type[nn.Module]) -> None:
    case = Case((2, 3, 8), device=torch.device("cpu"))
    norm, scale = make(8, EPS), LayerScale(8)
    scale.scale.copy_(case.branch.scale_D)
    summed, normed = add_and_norm(case.hidden, case.branch.output_BTD, scale, norm)
    torch.testing.assert_close(summed.double(), case.exact_sum())
    assert torch.equal(normed, norm(summed))
