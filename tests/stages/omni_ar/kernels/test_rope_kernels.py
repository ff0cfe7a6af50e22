"""Rotary tables, and the entries that they rotate and store, against float64."""

import pytest
import torch

pytest.importorskip("triton")

from omni_ar.kernels.rope import HeadNorms, kernel, reference
from tests.support.exact import DTYPES, HERE, assert_near, drawn, served

EPS = 1e-6
# Tokens, query heads, key heads, head width, block size.
SHAPES = [(3, 4, 2, 8, 4), (1, 2, 1, 16, 8), (2, 3, 3, 12, 1)]
LARGE = [(1, 32, 4, 128, 16), (64, 16, 8, 128, 16), (2049, 16, 2, 128, 16), (5, 7, 1, 80, 16), (33, 8, 8, 256, 32)]


def random_shape(chance):
    kv_heads = chance.randint(1, 3)
    heads, width = kv_heads * chance.randint(1, 4), 2 * chance.randint(2, 12)
    return chance.randint(1, 7), heads, kv_heads, width, chance.randint(1, 8)


ALL_SHAPES = [
    *SHAPES,
    *drawn(random_shape),
    served((5, 16, 8, 128, 16)),
    *(pytest.param(shape, marks=pytest.mark.gpu) for shape in LARGE),
]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def frequencies(half):
    return (1.0 / 1e6 ** (torch.arange(half) / half)).to(HERE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize(
    ("tokens", "half"), [(9, 8), (2, 6), served(9, 64), pytest.param(5000, 64, marks=pytest.mark.gpu)]
)
def test_tables_are_exact(tokens, half, axes, dtype):
    positions = torch.randint(0, 65_536, (axes, tokens), generator=generator(tokens)).to(HERE)
    axis = None if axes == 1 else torch.arange(half, device=HERE) % 3
    frequency = frequencies(half)
    cos, sin = kernel.rotary_table(positions, frequency, axis, dtype)
    place = positions[0, :, None] if axis is None else positions[axis].T
    # The angle is an fp32 number, as published models have it; from there on all digits count.
    angle = (place.float() * frequency).double().repeat(1, 2)
    atol = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(cos.double(), angle.cos(), rtol=0, atol=atol)
    torch.testing.assert_close(sin.double(), angle.sin(), rtol=0, atol=atol)


class Layer:
    def __init__(self, shape, dtype, normed, seed=0):
        tokens, self.heads, self.kv_heads, self.width, block = shape
        draw = lambda *size: torch.randn(size, generator=generator(seed)).to(HERE, dtype)  # noqa: E731
        # A wider row than needed: the projection may be part of another.
        self.qkv = draw(tokens, (self.heads + 2 * self.kv_heads) * self.width + 8)[:, :-8]
        self.norms = HeadNorms(1 + draw(self.width) / 3, draw(self.width), EPS) if normed else None
        positions = torch.randint(0, 3000, (1, tokens), generator=generator(seed)).to(HERE)
        self.tables = reference.rotary_table(positions, frequencies(self.width // 2), None, dtype)
        blocks = -(-tokens // block) + 2
        self.pages = [draw(blocks, block, self.kv_heads, self.width) for _ in range(2)]
        self.slots = (torch.randperm((blocks - 1) * block, generator=generator(seed))[:tokens] + block).to(HERE)

    def run(self, operation):
        key, value = (page.clone() for page in self.pages)
        return operation(self.qkv, self.norms, *self.tables, self.heads, key, value, self.slots), key, value

    def exact(self):
        cos, sin = (table.double()[:, None] for table in self.tables)
        heads = self.qkv.double().unflatten(-1, (-1, self.width))
        query, key, value = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        turned = []
        weights = (None, None) if self.norms is None else (self.norms.query_W, self.norms.key_W)
        for x, weight in zip((query, key), weights, strict=True):
            if weight is not None:
                x = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()
            first, second = x.chunk(2, -1)
            turned.append(x * cos + torch.cat((-second, first), -1) * sin)
        pages = [page.double() for page in self.pages]
        for page, new in zip(pages, (turned[1], value), strict=True):
            page.view(-1, self.kv_heads, self.width)[self.slots] = new
        return turned[0], *pages


@pytest.mark.parametrize(
    "operation", [kernel.qk_norm_rope_write, reference.qk_norm_rope_write], ids=["kernel", "reference"]
)
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ALL_SHAPES)
def test_norm_turn_and_write(operation, shape, normed, dtype):
    layer = Layer(shape, dtype, normed)
    (query, key, value), (exact_query, exact_key, exact_value) = layer.run(operation), layer.exact()
    assert query.is_contiguous()
    assert_near(query, exact_query)
    assert_near(key, exact_key)
    assert torch.equal(value.double(), exact_value)


def test_null_slots_may_repeat_and_nothing_else_changes():
    layer = Layer((5, 2, 1, 8, 4), torch.float32, normed=True)
    layer.slots[1:4] = 0
    (_, key, value), (_, other_key, _) = layer.run(kernel.qk_norm_rope_write), layer.run(reference.qk_norm_rope_write)
    torch.testing.assert_close(key[1:], other_key[1:])
    for page, before in zip((key, value), layer.pages, strict=True):
        assert torch.equal(page[0, 1:], before[0, 1:])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_roundings_are_those_of_separate_operations(dtype):
    layer = Layer((50, 8, 2, 128, 16), dtype, normed=False)
    for ours, plain in zip(layer.run(kernel.qk_norm_rope_write), layer.run(reference.qk_norm_rope_write), strict=True):
        assert torch.equal(ours, plain)


def test_without_tokens_nothing_is_stored():
    layer = Layer((0, 2, 1, 8, 4), torch.float32, normed=True)
    query, key, value = layer.run(kernel.qk_norm_rope_write)
    assert query.shape == (0, 2, 8)
    assert torch.equal(key, layer.pages[0])
    assert torch.equal(value, layer.pages[1])
