"""The plain backend against brute-force attention in float64, over random block tables."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_ar.attention import AttentionMetadata, PrefillRow, TorchPagedAttention
from tests.stages.omni_ar.paged_rows import LAYER, PagedRows, dense, mixed_batch

BACKEND = TorchPagedAttention()


def run(world, decode_lengths, prefills, **kwargs):
    """Returns (ours, dense)."""
    q, meta, expected = mixed_batch(world, decode_lengths, prefills, **kwargs)
    return BACKEND.attend(q, world.cache, LAYER, meta), expected


def check(results, tolerance=1e-5):
    ours, expected = results
    torch.testing.assert_close(ours.double(), expected, rtol=tolerance, atol=tolerance)


@settings(max_examples=40)
@given(
    st.integers(0, 2**31),
    st.lists(st.integers(1, 14), max_size=4),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 7)), max_size=3),
    st.sampled_from([(1, 1), (1, 4), (2, 1), (2, 3)]),
    st.sampled_from([1, 3, 4]),
    st.integers(0, 3),
    st.none() | st.tuples(st.integers(0, 2), st.integers(0, 9)),
)
def test_mixed_batches(seed, decode_lengths, prefills, heads, block_size, spare_columns, spare):
    if not decode_lengths and not prefills:
        decode_lengths = [1]
    world = PagedRows(seed, kv_heads=heads[0], group=heads[1], block_size=block_size, blocks=128)
    check(run(world, decode_lengths, prefills, spare_columns=spare_columns, spare=spare))


def test_the_bound_on_lengths_may_be_loose():
    world = PagedRows(1)
    table, slots, kv = world.take_row(5)
    world.write(slots, kv)
    q = world.queries(1)
    results = []
    for bound in (5, 8, 11, 12):
        decode_table = torch.tensor([[*table, 0]])
        meta = AttentionMetadata(slots[-1:], 1, decode_table, torch.tensor([5]), bound)
        results.append(BACKEND.attend(q, world.cache, LAYER, meta))
        check((results[-1], dense(q, kv, 4)))


def test_a_chunked_prompt_equals_the_whole_and_its_decodes():
    world = PagedRows(2)
    table, slots, kv = world.take_row(13)
    world.write(slots, kv)
    q, table_M = world.queries(13), torch.tensor(table)
    none = torch.zeros((0, 0), dtype=torch.int64)

    def prefill(start, stop):
        row = PrefillRow(0, stop - start, start, table_M)
        meta = AttentionMetadata(slots[start:stop], 0, none, none[0:0, 0:0].flatten(), 0, (row,))
        return BACKEND.attend(q[start:stop], world.cache, LAYER, meta)

    def decode(token):
        meta = AttentionMetadata(slots[token : token + 1], 1, table_M[None], torch.tensor([token + 1]), token + 1)
        return BACKEND.attend(q[token : token + 1], world.cache, LAYER, meta)

    expected = dense(q, kv, 0)
    for bounds in ([0, 13], [0, 4, 8, 13], [0, 1, 6, 13], [0, 12, 13]):
        chunks = [prefill(start, stop) for start, stop in pairwise(bounds)]
        check((torch.cat(chunks), expected))
    check((torch.cat([decode(token) for token in range(13)]), expected))


def test_nothing_beyond_a_rows_length_reaches_it():
    world = PagedRows(3)
    check(run(world, [1, 5, 10], [(3, 6), (0, 2)], spare_columns=2, poison=world.poison))
    check(run(PagedRows(3), [1, 5], [(3, 6)], spare_columns=2, spare=(2, 5), poison=world.poison))


def test_a_row_without_keys_gives_zeros_and_leaves_the_others_alone():
    world = PagedRows(4)
    table, slots, kv = world.take_row(6)
    world.write(slots, kv)
    world.cache.key[LAYER, 0] = float("nan")
    world.cache.value[LAYER, 0] = float("inf")
    q = world.queries(2)
    meta = AttentionMetadata(
        torch.tensor([0, int(slots[-1])]), 2, torch.tensor([[0, 0], table]), torch.tensor([0, 6]), 8
    )
    ours = BACKEND.attend(q, world.cache, LAYER, meta)
    assert torch.equal(ours[0], torch.zeros_like(ours[0]))
    check((ours[1:], dense(q[1:], kv, 5)))


def test_layers_do_not_mix_and_null_slots_may_repeat():
    world = PagedRows(5)
    before = world.cache.key.clone()
    kv = world.random(2, 3, world.kv_heads, world.head_dim)
    world.cache.write(LAYER, kv[0], kv[1], torch.tensor([0, 9, 0]))
    changed = (world.cache.key != before).flatten(3).any(-1)
    assert changed.nonzero().tolist() == [[LAYER, 0, 0], [LAYER, 2, 1]]
    assert torch.equal(world.cache.key[LAYER, 2, 1], kv[0, 1])
    assert torch.equal(world.cache.value[LAYER, 2, 1], kv[1, 1])


def test_bf16():
    world = PagedRows(6, dtype=torch.bfloat16)
    ours, expected = run(world, [1, 9], [(4, 5), (0, 3)])
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.double(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("decode_lengths", [[], [3]])
@pytest.mark.parametrize("prefills", [[(0, 1)], [(7, 1), (0, 1)]])
def test_one_token_prompts(decode_lengths, prefills):
    check(run(PagedRows(7), decode_lengths, prefills))
