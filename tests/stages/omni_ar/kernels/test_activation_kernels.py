"""The gated activation's kernel against float64."""

import pytest
import torch

pytest.importorskip("triton")

from omni_ar.kernels.activation import kernel, reference
from tests.support.exact import DTYPES, HERE, drawn, served

SHAPES = [(1, 8), (3, 40), (2, 7), (4, 1030)]
RANDOM = drawn(lambda chance: (chance.randint(1, 9), chance.randint(1, 300)))
LARGE = [(1, 3072), (64, 768), (33, 12_288), (2049, 3072), (5, 385)]


def exact(x):
    gate, up = x.double().chunk(2, -1)
    return gate * gate.sigmoid() * up


@pytest.mark.parametrize("run", [kernel.silu_and_mul, reference.silu_and_mul], ids=["kernel", "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "width"), SHAPES + RANDOM + [served(3, 3072)] + [pytest.param(*s, marks=pytest.mark.gpu) for s in LARGE]
)
def test_silu_and_mul(run, rows, width, dtype):
    x = (torch.randn(rows, 2 * width, generator=torch.Generator().manual_seed(rows)) * 6).to(HERE, dtype)
    ours = run(x)
    assert ours.is_contiguous()
    torch.testing.assert_close(ours.double(), exact(x), rtol=8 * torch.finfo(dtype).eps, atol=1e-6)


def test_far_out_gates_close_or_pass():
    gate, up = torch.tensor([[-1e4, -88.0, 0.0, 88.0, 1e4]], device=HERE), torch.full((1, 5), 2.0, device=HERE)
    ours = kernel.silu_and_mul(torch.cat((gate, up), -1))
    torch.testing.assert_close(ours, torch.tensor([[0.0, 0.0, 0.0, 176.0, 2e4]], device=HERE))


def test_rows_with_a_stride_and_none():
    x = torch.randn(6, 30, generator=torch.Generator().manual_seed(1)).to(HERE)
    assert torch.allclose(kernel.silu_and_mul(x[::2, 2:18]).double(), exact(x[::2, 2:18]))
    assert kernel.silu_and_mul(x[:0]).shape == (0, 15)
