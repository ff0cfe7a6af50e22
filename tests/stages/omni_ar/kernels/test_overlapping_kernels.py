"""Kernels that overlap have the results that they have one by one."""

import pytest
import torch
from msgspec.structs import replace

pytest.importorskip("triton")

from omni_ar.kernels.linear.settings import StreamedSettings, TiledSettings
from omni_ar.kernels.overlap import kernels_in_turn, overlaps
from tests.support.exact import HERE

STREAMED = StreamedSettings(block_n=4, block_d=1024, num_warps=4)
TILED = TiledSettings(tile_n=16, tile_d=128, slices=1, rows_left=False, num_warps=4, num_stages=4)
SLICED = TiledSettings(tile_n=8, tile_d=256, slices=4, rows_left=False, num_warps=4, num_stages=4)
HELD = TiledSettings(tile_n=16, tile_d=512, slices=8, rows_left=False, num_warps=8, num_stages=2, held=True)
WIDTH, HEADS, KV_HEADS, HEAD, INNER, EPS = 1024, 8, 2, 128, 1536, 1e-6


class Chain:
    """Layers without attention: each kernel needs what the one before wrote, and writes where an earlier one read."""

    def __init__(self, rows, layers=24):
        generator = torch.Generator().manual_seed(rows)
        draw = lambda *shape: torch.randn(shape, generator=generator).to(HERE, torch.bfloat16)  # noqa: E731
        self.x, self.layers = draw(rows, WIDTH), []
        heads = HEADS + 2 * KV_HEADS
        for _ in range(layers):
            shapes = [(heads * HEAD, WIDTH), (WIDTH, HEADS * HEAD), (2 * INNER, WIDTH), (WIDTH, INNER)]
            self.layers.append([draw(*shape) * shape[1] ** -0.5 for shape in shapes])
        self.norm, self.head_norm = 1 + draw(WIDTH) / 4, 1 + draw(HEAD) / 4
        self.slots = torch.arange(rows, device=HERE)
        self.pages = [torch.zeros(rows, 1, KV_HEADS, HEAD, dtype=torch.bfloat16, device=HERE) for _ in range(2)]
        self.frequency = 1e-3 ** (torch.arange(HEAD // 2, device=HERE) / HEAD)

    def run(self, way):
        from omni_ar.kernels.linear import streamed, tiled
        from omni_ar.kernels.norm import add_rms_norm
        from omni_ar.kernels.rope import HeadNorms, qk_norm_rope_write, rotary_table

        def linear(x, weight):
            if way == "streamed":
                return streamed.linear(x, weight, None, STREAMED)
            return tiled.linear(x, weight, None, HELD if way == "held" else whole)

        def normed(x, delta, weight, gated):
            if way == "streamed":
                return streamed.norm_linear(x, delta, self.norm, EPS, weight, None, gated, STREAMED)
            if way == "sliced":
                # Weight rows of a tile: the matrix units' left operand has 16.
                settings = SLICED if gated else replace(SLICED, tile_n=16)
                return tiled.norm_linear(x, delta, self.norm, EPS, weight, None, gated, settings)
            if way == "held" and gated:
                return tiled.norm_linear(x, delta, self.norm, EPS, weight, None, gated, replace(HELD, tile_n=8))
            x, total = add_rms_norm(x, delta, self.norm, EPS, prefetch=weight)
            return (tiled.gated_linear if gated else tiled.linear)(x, weight, None, whole), total

        whole = replace(TILED, early=way != "late")
        cos, sin = rotary_table(self.slots[None], self.frequency, None, torch.bfloat16)
        norms = HeadNorms(self.head_norm, self.head_norm, EPS)
        (key, value), x, delta = self.pages, self.x, self.x
        for qkv_weight, o_weight, gate_up_weight, down_weight in self.layers:
            qkv, x = normed(x, delta, qkv_weight, False)
            query = qk_norm_rope_write(qkv, norms, cos, sin, HEADS, key, value, self.slots, prefetch=o_weight)
            delta = linear(query.flatten(1) + self.pages[0].flatten(1).repeat(1, HEADS // KV_HEADS), o_weight)
            active, x = normed(x, delta, gate_up_weight, True)
            delta = linear(active, down_weight)
        return x + delta


@pytest.mark.gpu
@pytest.mark.parametrize(("way", "rows"), [("streamed", 7), ("tiled", 5), ("late", 5), ("sliced", 8), ("held", 8)])
def test_a_chain_gives_the_same_bits_as_one_kernel_after_another(way, rows):
    chain = Chain(rows, layers=2)
    with kernels_in_turn():
        expected = chain.run(way)
    for _ in range(3):
        assert torch.equal(chain.run(way), expected)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("way", "rows"), [("streamed", 1), ("streamed", 7), ("tiled", 5), ("tiled", 40), ("sliced", 8)]
)
def test_a_captured_chain_gives_the_same_bits_as_one_kernel_after_another(way, rows):
    chain = Chain(rows)
    with kernels_in_turn():
        assert not overlaps(chain.x)
        expected = chain.run(way)
    assert overlaps(chain.x)
    chain.run(way)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain.run(way)
    for _ in range(30):
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, expected)


def test_the_cpu_has_no_such_launches():
    assert not overlaps(torch.zeros(1))
