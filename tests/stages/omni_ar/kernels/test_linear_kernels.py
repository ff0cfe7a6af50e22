"""Linear maps of a few rows, with norms and activations, against float64."""

import pytest
import torch

pytest.importorskip("triton")

from omni.device.kernel_choice import plain_torch
from omni_ar.kernels.linear import norm_linear, reference, streamed, tiled
from omni_ar.kernels.linear.settings import StreamedSettings, TiledSettings
from tests.support.exact import DTYPES, HERE, drawn, served

pytestmark = pytest.mark.thorough

EPS = 1e-6
# Rows, inputs, outputs; tile.
SHAPES = [(1, 16, 8, 4, 16), (3, 24, 10, 4, 16), (2, 7, 6, 2, 8)]
LARGE = [(1, 1024, 4096, 4, 1024), (8, 2048, 1024, 4, 2048), (5, 3072, 1024, 8, 1024), (4, 4096, 2048, 2, 4096)]


def random_shape(chance):
    tile = 2 ** chance.randint(1, 3), 2 ** chance.randint(3, 5)
    return chance.randint(1, 8), chance.randint(2, 60), 2 * chance.randint(1, 12), *tile


ALL_SHAPES = [
    *SHAPES,
    *drawn(random_shape),
    served(2, 1024, 512, 4, 1024),
    *(pytest.param(*shape, marks=pytest.mark.gpu) for shape in LARGE),
]
# Of the size of a result's terms. fp32: sums of up to 4,096 products. The others: one and a half units in the last place, since
# inputs, gates, activations and results are rounded.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.5 * 2**-7, torch.float16: 1.5 * 2**-10}


class Case:
    def __init__(self, rows, width, outputs, block_n, block_d, dtype, bias):
        generator = torch.Generator().manual_seed(rows + width)
        draw = lambda *shape: torch.randn(shape, generator=generator).to(HERE, dtype)  # noqa: E731
        self.x, self.delta, self.norm = draw(rows, width + 8)[:, :width], draw(rows, width), 1 + draw(width) / 3
        self.weight = draw(outputs, width) * width**-0.5
        self.bias = draw(outputs) if bias else None
        self.streamed = StreamedSettings(block_n=block_n, block_d=block_d, num_warps=4)
        self.dtype = dtype

    def expected(self, x, gated=False):
        """Results, and the size of the terms of each, in float64.

        Rounding errors are relative to the size: a result whose terms cancel may be as small as they are.
        """
        weight = self.weight.double()
        bias = torch.zeros(len(weight), dtype=torch.double, device=HERE) if self.bias is None else self.bias.double()
        y = x @ weight.T + bias
        size = y.abs() + (x.square() @ weight.square().T + bias.square()).sqrt()
        if not gated:
            return y, size
        (gate, up), (gate_size, up_size) = y.chunk(2, -1), size.chunk(2, -1)
        activated = gate * gate.sigmoid()
        # The activation's slope is at most 1.1.
        return activated * up, 1.1 * gate_size * up.abs() + activated.abs() * up_size

    def normed(self, x):
        x = x.double()
        return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * self.norm.double()

    def check(self, ours, expected):
        exact, size = expected
        assert ours.dtype == self.dtype
        assert ours.shape == exact.shape
        worst = ((ours.double() - exact).abs() / size).max()
        assert worst < TOLERANCE[self.dtype], f"off by {worst:.2e} of the size of its terms"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width", "outputs", "block_n", "block_d"), ALL_SHAPES)
def test_streamed_products_are_exact(rows, width, outputs, block_n, block_d, dtype, bias):
    case = Case(rows, width, outputs, block_n, block_d, dtype, bias)
    x = case.x.double()
    case.check(streamed.linear(case.x, case.weight, case.bias, case.streamed), case.expected(x))
    case.check(streamed.gated_linear(case.x, case.weight, case.bias, case.streamed), case.expected(x, gated=True))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width", "outputs", "block_n", "block_d"), ALL_SHAPES)
def test_streamed_products_after_a_norm_are_exact(rows, width, outputs, block_n, block_d, dtype, added, gated):
    case = Case(rows, width, outputs, block_n, block_d, dtype, bias=gated)
    delta = case.delta if added else None
    total = case.x + case.delta if added else case.x
    expected = case.expected(case.normed(total), gated)
    y, x_sum = streamed.norm_linear(case.x, delta, case.norm, EPS, case.weight, case.bias, gated, case.streamed)
    case.check(y, expected)
    assert torch.equal(x_sum, total)


# By themselves: racecheck does not get through kernels of cuBLAS, and looks at the tests above.
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "width", "outputs"), [*(s[:3] for s in SHAPES), pytest.param(5, 3072, 1024, marks=pytest.mark.gpu)]
)
def test_in_plain_torch(rows, width, outputs, dtype, bias):
    case = Case(rows, width, outputs, 1, 1, dtype, bias)
    x, normed = case.x.double(), case.normed(case.x + case.delta)
    case.check(reference.linear(case.x, case.weight, case.bias), case.expected(x))
    case.check(reference.gated_linear(case.x, case.weight, case.bias), case.expected(x, gated=True))
    for gated in (False, True):
        with plain_torch():
            y, x_sum = norm_linear(case.x, case.delta, case.norm, EPS, case.weight, case.bias, gated=gated)
        case.check(y, case.expected(normed, gated))
        assert torch.equal(x_sum, case.x + case.delta)


def tile(tile_n, tile_d, slices, rows_left, held, splits=1):
    return TiledSettings(
        tile_n=tile_n,
        tile_d=tile_d,
        slices=slices,
        rows_left=bool(rows_left),
        num_warps=max(4, slices),
        num_stages=3,
        splits=splits,
        held=bool(held),
    )


# Rows, inputs, outputs; outputs and inputs of a tile, slices, whether rows are the left operand, whether weights are held.
TILES = [
    (3, 40, 20, 16, 32, 2, 0, 0),
    (3, 40, 20, 8, 32, 2, 1, 1),
    (17, 32, 32, 16, 16, 1, 0, 1),
    (1, 16, 8, 8, 16, 1, 1, 0),
]
LARGE_TILES = [
    *((8, 1024, 6144, 8, 256, 4, 0, 0), (5, 2048, 1024, 16, 512, 8, 0, 0), (1, 768, 1000, 16, 512, 4, 0, 1)),
    *((16, 3072, 1024, 8, 256, 4, 1, 0), (33, 2048, 1000, 16, 128, 4, 1, 0), (64, 4096, 2048, 16, 128, 4, 1, 0)),
    *((16, 1024, 4096, 64, 64, 1, 0, 0), (64, 3000, 1024, 64, 64, 1, 0, 0), (9, 4096, 6144, 32, 128, 1, 0, 0)),
    *((8, 1024, 6144, 8, 1024, 8, 0, 1), (7, 1024, 1000, 16, 512, 8, 0, 1), (13, 1536, 1024, 8, 512, 8, 1, 1)),
]
# Narrow tiles whose warps share the width, wide ones, and those that a program has all at once.
SERVED_TILES = [(8, 1024, 512, 16, 256, 4, 0, 0), (16, 512, 1024, 64, 128, 1, 0, 0), (7, 1024, 512, 16, 512, 8, 0, 1)]
tiles = pytest.mark.parametrize(
    ("rows", "width", "outputs", "settings"),
    [(*t[:3], tile(*t[3:])) for t in TILES]
    + [served(*t[:3], tile(*t[3:])) for t in SERVED_TILES]
    + [pytest.param(*t[:3], tile(*t[3:]), marks=pytest.mark.gpu) for t in LARGE_TILES],
)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@tiles
def test_tiles_give_exact_products(rows, width, outputs, settings, dtype, bias):
    case = Case(rows, width, outputs, 1, 1, dtype, bias)
    x = case.x.double()
    case.check(tiled.linear(case.x, case.weight, case.bias, settings), case.expected(x))
    case.check(tiled.gated_linear(case.x, case.weight, case.bias, settings), case.expected(x, gated=True))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@tiles
def test_tiles_with_a_norm(rows, width, outputs, settings, dtype, added, gated):
    case = Case(rows, width, outputs, 1, 1, dtype, bias=added)
    total = case.x + case.delta if added else case.x
    expected = case.expected(case.normed(total), gated)
    delta = case.delta if added else None
    y, x_sum = tiled.norm_linear(case.x, delta, case.norm, EPS, case.weight, case.bias, gated, settings)
    case.check(y, expected)
    assert torch.equal(x_sum, total)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "width", "outputs", "splits", "tile_d"),
    [
        (3, 64, 20, 2, 16),
        served(8, 2048, 512, 4, 128),
        *(pytest.param(*s, marks=pytest.mark.gpu) for s in ((64, 3072, 1024, 4, 128), (20, 2048, 1000, 8, 256))),
    ],
)
def test_splits_of_the_width_are_added_up(rows, width, outputs, splits, tile_d, dtype, bias):
    case = Case(rows, width, outputs, 1, 1, dtype, bias)
    for slices in (1, 4) if tile_d > 16 else (1,):
        settings = tile(16, tile_d, slices, 0, 0, splits)
        expected = case.expected(case.x.double())
        case.check(tiled.linear(case.x, case.weight, case.bias, settings), expected)
        if not bias:
            parts = tiled.linear_parts(case.x, case.weight, settings)
            assert parts.shape == (splits, rows, outputs)
            case.check(parts.sum(0).to(dtype), expected)


# The interpreter's numpy warns of a result that is intended here.
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("dtype", DTYPES)
@tiles
def test_a_row_does_not_see_the_others(rows, width, outputs, settings, dtype):
    case = Case(rows, width, outputs, 1, 1, dtype, bias=False)
    spoiled, ours = case.x.clone(), rows // 2
    spoiled[torch.arange(rows) != ours] = torch.nan
    spoiled[ours + 1 :: 2] = torch.inf

    def results(x):
        yield tiled.linear(x, case.weight, None, settings)
        yield from tiled.norm_linear(x, case.delta, case.norm, EPS, case.weight, None, True, settings)

    for with_others, with_spoiled in zip(results(case.x), results(spoiled), strict=True):
        assert torch.equal(with_others[ours], with_spoiled[ours])
        assert rows == 1 or not with_spoiled.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["tiled", "streamed"])
def test_linear_maps_repeat_to_the_bit(kernel):
    case = Case(8, 2048, 1024, 2, 2048, torch.bfloat16, bias=False)

    def run():
        if kernel == "tiled":
            return tiled.linear(case.x, case.weight, None, tile(16, 256, 4, 0, 0))
        return streamed.linear(case.x, case.weight, None, case.streamed)

    first = run()
    assert all(torch.equal(first, run()) for _ in range(20))
