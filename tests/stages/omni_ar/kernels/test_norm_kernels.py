"""RMSNorm kernels against float64, and the dispatch to them."""

import pytest
import torch

pytest.importorskip("triton")

from omni_ar.kernels.norm import kernel, reference
from tests.support.exact import DTYPES, HERE, assert_near, drawn, served

EPS = 1e-6
SHAPES = [(1, 64), (3, 24), (5, 8), (2, 80), (40, 16)]
LARGE = [(1, 2048), (7, 1024), (64, 4096), (1, 8192), (33, 128), (2049, 2048), (5000, 96), (3, 7000), (2, 1)]
RANDOM = drawn(lambda chance: (chance.randint(1, 9), chance.randint(2, 200)))
ALL_SHAPES = [*SHAPES, *RANDOM, served(3, 1024), *(pytest.param(*shape, marks=pytest.mark.gpu) for shape in LARGE)]


def draw(shape, dtype, seed, scale=1.0):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    return values.to(HERE, dtype)


def exact_norm(x, weight):
    x, weight = x.double(), weight.double()
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), ALL_SHAPES)
@pytest.mark.parametrize("scale", [1.0, 1e-3, 300.0])
def test_norms_are_exact(rows, width, dtype, scale):
    x, weight = draw((rows, width), dtype, rows, scale), draw((width,), dtype, width)
    assert_near(kernel.rms_norm(x, weight, EPS), exact_norm(x, weight))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), ALL_SHAPES)
def test_add_and_norm(rows, width, dtype):
    x, delta = draw((rows, width), dtype, rows), draw((rows, width), dtype, rows + 1)
    weight = draw((width,), dtype, width)
    normed, total = kernel.add_rms_norm(x, delta, weight, EPS)
    assert torch.equal(total, x + delta)
    assert_near(normed, exact_norm(total, weight))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), ALL_SHAPES)
def test_add_parts_and_norm(rows, width, dtype):
    x, parts = draw((rows, width), dtype, rows), draw((3, rows, width), torch.float32, rows + 1)
    weight = draw((width,), dtype, width)
    for add in (kernel.add_rms_norm, reference.add_rms_norm):
        normed, total = add(x, parts, weight, EPS)
        assert total.dtype == normed.dtype == dtype
        assert_near(total, x.double() + parts.double().sum(0))
        assert_near(normed, exact_norm(total, weight))


def test_leading_dimensions_and_rows_with_a_stride():
    x, weight = draw((4, 3, 40), torch.float32, 0), draw((24,), torch.float32, 1)
    assert_near(kernel.rms_norm(x[..., 8:32], weight, EPS), exact_norm(x[..., 8:32], weight))
    rows, delta = x[:, 0, :24], x[:, 1, 16:]
    normed, total = kernel.add_rms_norm(rows, delta, weight, EPS)
    assert torch.equal(total, rows + delta)
    assert_near(normed, exact_norm(total, weight))


def test_no_rows_give_no_rows():
    empty, weight = draw((0, 16), torch.float32, 0), draw((16,), torch.float32, 1)
    assert kernel.rms_norm(empty, weight, EPS).shape == (0, 16)
    assert [part.shape for part in kernel.add_rms_norm(empty, empty, weight, EPS)] == [(0, 16), (0, 16)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reference_is_exact(dtype):
    x, delta, weight = (draw(shape, dtype, seed) for seed, shape in enumerate([(5, 24), (5, 24), (24,)]))
    normed, total = reference.add_rms_norm(x, delta, weight, EPS)
    assert_near(normed, exact_norm(total, weight))
    assert torch.equal(normed, reference.rms_norm(total, weight, EPS))
