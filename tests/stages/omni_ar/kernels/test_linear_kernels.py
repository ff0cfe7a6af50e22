"""Linear maps of a few rows, with norms and activations, against float64."""

import pytest
import torch

pytest.importorskip("triton")

from omni_ar.kernels.linear import norm_linear, reference, streamed, tiled
from omni_ar.kernels.select import plain_torch
from support.exact import DTYPES, HERE

EPS = 1e-6
# Rows, inputs, outputs; tile.
SHAPES = [(1, 16, 8, 4, 16), (3, 24, 10, 4, 16), (2, 7, 6, 2, 8)]
LARGE = [(1, 1024, 4096, 4, 1024), (8, 2048, 1024, 4, 2048), (5, 3072, 1024, 8, 1024), (4, 4096, 2048, 2, 4096)]
ALL_SHAPES = SHAPES + [pytest.param(*shape, marks=pytest.mark.gpu) for shape in LARGE]
# Of the largest result: fp32 sums of up to 4,096 products; for the others a rounding of the input and one of the result.
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


class Case:
    def __init__(self, rows, width, outputs, block_n, block_d, dtype, bias):
        generator = torch.Generator().manual_seed(rows + width)
        draw = lambda *shape: torch.randn(shape, generator=generator).to(HERE, dtype)  # noqa: E731
        self.x, self.delta, self.norm = draw(rows, width + 8)[:, :width], draw(rows, width), 1 + draw(width) / 3
        self.weight = draw(outputs, width) * width**-0.5
        self.bias = draw(outputs) if bias else None
        self.config = {"block_n": block_n, "block_d": block_d, "num_warps": 4}
        self.dtype = dtype

    def exact(self, x):
        y = x @ self.weight.double().T
        return y if self.bias is None else y + self.bias.double()

    def normed(self, x):
        x = x.double()
        return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * self.norm.double()

    def check(self, ours, exact):
        assert ours.dtype == self.dtype
        assert ours.shape == exact.shape
        assert (ours.double() - exact).abs().max() / exact.abs().max() < TOLERANCE[self.dtype]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width", "outputs", "block_n", "block_d"), ALL_SHAPES)
def test_linear(rows, width, outputs, block_n, block_d, dtype, bias):
    case = Case(rows, width, outputs, block_n, block_d, dtype, bias)
    exact = case.exact(case.x.double())
    case.check(streamed.linear(case.x, case.weight, case.bias, case.config), exact)
    case.check(reference.linear(case.x, case.weight, case.bias), exact)
    gate, up = exact.chunk(2, -1)
    gated = gate * gate.sigmoid() * up
    case.check(streamed.gated_linear(case.x, case.weight, case.bias, case.config), gated)
    case.check(reference.gated_linear(case.x, case.weight, case.bias), gated)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width", "outputs", "block_n", "block_d"), ALL_SHAPES)
def test_norm_linear(rows, width, outputs, block_n, block_d, dtype, added, gated):
    case = Case(rows, width, outputs, block_n, block_d, dtype, bias=gated)
    delta = case.delta if added else None
    total = case.x + delta if added else case.x
    exact = case.exact(case.normed(total))
    if gated:
        gate, up = exact.chunk(2, -1)
        exact = gate * gate.sigmoid() * up
    parts = (case.x, delta, case.norm, EPS, case.weight, case.bias)
    with plain_torch():
        separate = norm_linear(*parts, gated=gated)
    for y, x_sum in (streamed.norm_linear(*parts, gated, case.config), separate):
        case.check(y, exact)
        assert torch.equal(x_sum, total)


def tile(tile_n, tile_d, slices, rows_left, held):
    shape = {"tile_n": tile_n, "tile_d": tile_d, "slices": slices, "rows_left": rows_left, "held": held}
    return shape | {"num_warps": max(4, slices), "num_stages": 3}


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
tiles = pytest.mark.parametrize(
    ("rows", "width", "outputs", "config"),
    [(*t[:3], tile(*t[3:])) for t in TILES]
    + [pytest.param(*t[:3], tile(*t[3:]), marks=pytest.mark.gpu) for t in LARGE_TILES],
)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@tiles
def test_tiles(rows, width, outputs, config, dtype, bias):
    case = Case(rows, width, outputs, 1, 1, dtype, bias)
    exact = case.exact(case.x.double())
    case.check(tiled.linear(case.x, case.weight, case.bias, config), exact)
    gate, up = exact.chunk(2, -1)
    case.check(tiled.gated_linear(case.x, case.weight, case.bias, config), gate * gate.sigmoid() * up)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@tiles
def test_tiles_with_a_norm(rows, width, outputs, config, dtype, added, gated):
    case = Case(rows, width, outputs, 1, 1, dtype, bias=added)
    total = case.x + case.delta if added else case.x
    exact = case.exact(case.normed(total))
    if gated:
        gate, up = exact.chunk(2, -1)
        exact = gate * gate.sigmoid() * up
    delta = case.delta if added else None
    y, x_sum = tiled.norm_linear(case.x, delta, case.norm, EPS, case.weight, case.bias, gated, config)
    case.check(y, exact)
    assert torch.equal(x_sum, total)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "width", "outputs", "splits", "tile_d"),
    [
        (3, 64, 20, 2, 16),
        *(pytest.param(*s, marks=pytest.mark.gpu) for s in ((64, 3072, 1024, 4, 128), (20, 2048, 1000, 8, 256))),
    ],
)
def test_splits_of_the_width_are_added_up(rows, width, outputs, splits, tile_d, dtype, bias):
    case = Case(rows, width, outputs, 1, 1, dtype, bias)
    for slices in (1, 4) if tile_d > 16 else (1,):
        config = tile(16, tile_d, slices, 0, 0) | {"splits": splits}
        exact = case.exact(case.x.double())
        case.check(tiled.linear(case.x, case.weight, case.bias, config), exact)
        if not bias:
            parts = tiled.linear_parts(case.x, case.weight, config)
            assert parts.shape == (splits, rows, outputs)
            case.check(parts.sum(0).to(dtype), exact)


# The interpreter's numpy warns of what is wanted here.
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("dtype", DTYPES)
@tiles
def test_a_row_does_not_see_the_others(rows, width, outputs, config, dtype):
    case = Case(rows, width, outputs, 1, 1, dtype, bias=False)
    spoiled, ours = case.x.clone(), rows // 2
    spoiled[torch.arange(rows) != ours] = torch.nan
    spoiled[ours + 1 :: 2] = torch.inf

    def results(x):
        yield tiled.linear(x, case.weight, None, config)
        yield from tiled.norm_linear(x, case.delta, case.norm, EPS, case.weight, None, True, config)

    for with_others, with_spoiled in zip(results(case.x), results(spoiled), strict=True):
        assert torch.equal(with_others[ours], with_spoiled[ours])
        assert rows == 1 or not with_spoiled.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["tiled", "streamed"])
def test_linear_maps_repeat_to_the_bit(kernel):
    case = Case(8, 2048, 1024, 2, 2048, torch.bfloat16, bias=False)
    run, config = (tiled.linear, tile(16, 256, 4, 0, 0)) if kernel == "tiled" else (streamed.linear, case.config)
    first = run(case.x, case.weight, None, config)
    assert all(torch.equal(first, run(case.x, case.weight, None, config)) for _ in range(20))
