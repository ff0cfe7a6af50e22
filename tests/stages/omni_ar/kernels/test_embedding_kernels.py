"""Sums of embeddings: the kernel has the bits of the reference, for any number of tokens at once."""

import pytest
import torch

pytest.importorskip("triton")

from omni_ar.kernels.embedding import kernel, reference
from tests.support.exact import DTYPES, HERE, drawn, served

# Tokens, tables, rows of a table, width.
SHAPES = [(3, 2, 5, 8), (1, 1, 4, 12), (2, 3, 7, 5)]
LARGE = [(1, 15, 2048, 1024), (64, 31, 2051, 2048), (700, 15, 64, 1024), (5, 4, 9, 1500)]


def random_shape(chance):
    return chance.randint(1, 4), chance.randint(1, 5), chance.randint(2, 9), chance.randint(1, 40)


def case(shape, dtype):
    tokens, tables, rows, width = shape
    chance = torch.Generator().manual_seed(rows)
    ids = torch.randint(0, rows, (tokens, tables), generator=chance).to(HERE)
    embedded = [torch.randn(rows, width, generator=chance).to(HERE, dtype) for _ in range(tables)]
    return ids, embedded, torch.randn(tokens, width, generator=chance).to(HERE, dtype)


@pytest.mark.parametrize("first", [True, False], ids=["first", "tables"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [*SHAPES, *drawn(random_shape), served((2, 15, 9, 1024)), *(pytest.param(s, marks=pytest.mark.gpu) for s in LARGE)],
)
def test_sums_have_the_bits_of_plain_torch(shape, dtype, first):
    ids, tables, vector = case(shape, dtype)
    given = vector if first else None
    ours = kernel.summed_embeddings(ids, tables, given)
    assert ours.dtype == dtype
    assert torch.equal(ours, reference.summed_embeddings(ids, tables, given))
    exact = sum((t.double()[i] for t, i in zip(tables, ids.unbind(1), strict=True)), vector.double() * first)
    torch.testing.assert_close(ours.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=4e-6)


def test_a_sum_depends_on_no_other_token():
    ids, tables, vector = case((4, 3, 7, 20), torch.float32)
    whole = kernel.summed_embeddings(ids, tables, vector)
    for token in range(4):
        one = slice(token, token + 1)
        assert torch.equal(kernel.summed_embeddings(ids[one], tables, vector[one]), whole[one])


def test_ids_and_vectors_with_strides():
    ids, tables, vector = case((3, 4, 6, 10), torch.float32)
    wide = torch.stack([vector, vector], 1)
    ours = kernel.summed_embeddings(ids[:, 1:3], tables[1:3], wide[:, 1])
    assert torch.equal(ours, reference.summed_embeddings(ids[:, 1:3], tables[1:3], vector))


def test_one_id_for_each_table():
    ids, tables, _ = case((2, 3, 4, 8), torch.float32)
    with pytest.raises(ValueError, match="3 ids of each token for 2 tables"):
        kernel.summed_embeddings(ids, tables[:2], None)
