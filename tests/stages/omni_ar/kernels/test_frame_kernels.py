"""Attention within a frame, token by token, against float64 over the whole frame at once."""

import pytest
import torch

pytest.importorskip("triton")

from omni_ar.kernels.frame import kernel, reference
from omni_ar.kernels.rope import HeadNorms
from omni_ar.kernels.rope.reference import rotary_table
from tests.support.exact import DTYPES, HERE, drawn, served

EPS = 1e-6
# Rows, positions, query heads, key heads, head width.
SHAPES = [(2, 4, 4, 2, 8), (1, 3, 3, 1, 12)]
LARGE = [(1, 16, 16, 8, 128), (64, 16, 16, 8, 128), (33, 9, 6, 2, 80), (5, 32, 4, 4, 64)]


def random_shape(chance):
    kv_heads = chance.randint(1, 2)
    heads, width = kv_heads * chance.randint(1, 3), 2 * chance.randint(2, 10)
    return chance.randint(1, 3), chance.randint(2, 6), heads, kv_heads, width


# A share of the largest output: weights are fp32, inputs are rounded.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def draw(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(HERE, dtype)


def exact_frames(qkv_RGX, norms, cos, sin, heads, kv_heads, width):
    split = qkv_RGX.double().unflatten(-1, (-1, width)).split((heads, kv_heads, kv_heads), dim=2)
    query, key, value = (part.transpose(1, 2) for part in split)
    turned = []
    for x, weight in ((query, 0), (key, 1)):
        if norms is not None:
            x = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * norms[weight].double()
        first, second = x.chunk(2, -1)
        turned.append(x * cos.double() + torch.cat((-second, first), -1) * sin.double())
    query, key = turned[0], turned[1].repeat_interleave(heads // kv_heads, 1)
    scores = (query @ key.mT * width**-0.5).masked_fill(
        torch.ones(cos.shape[0], cos.shape[0], dtype=torch.bool, device=HERE).triu(1), -torch.inf
    )
    return (scores.softmax(-1) @ value.repeat_interleave(heads // kv_heads, 1)).transpose(1, 2)


@pytest.mark.parametrize("operation", [kernel.attend_frame, reference.attend_frame], ids=["kernel", "reference"])
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [
        *SHAPES,
        *drawn(random_shape),
        served((2, 16, 16, 8, 128)),
        *(pytest.param(s, marks=pytest.mark.gpu) for s in LARGE),
    ],
)
def test_a_frame_in_passes(operation, shape, normed, dtype):
    rows, positions, heads, kv_heads, width = shape
    qkv = draw(rows, positions, (heads + 2 * kv_heads) * width, dtype=dtype)
    norms = HeadNorms(1 + draw(width, dtype=dtype) / 3, draw(width, dtype=dtype, seed=1), EPS) if normed else None
    frequency = 1.0 / 1e4 ** (torch.arange(width // 2, device=HERE) / (width // 2))
    tables = rotary_table(torch.arange(positions, device=HERE)[None], frequency, None, dtype)
    # What no pass has written must not matter.
    key, value = (torch.full((rows, positions, kv_heads, width), torch.nan, dtype=dtype, device=HERE) for _ in "kv")

    def attend(start, stop):
        part = qkv[:, start:stop].flatten(0, 1)
        return operation(part, norms, *tables, start, heads, key, value).unflatten(0, (rows, -1))

    # Two tokens first, as a frame begins with the hidden state and its first code.
    passes = [(0, 2)] + [(start, start + 1) for start in range(2, positions)]
    ours = torch.cat([attend(*bounds) for bounds in passes], 1)

    exact = exact_frames(qkv, norms, *tables, heads, kv_heads, width)
    assert ours.dtype == dtype
    assert ((ours.double() - exact).abs().amax() / exact.abs().amax()) < TOLERANCE[dtype]
