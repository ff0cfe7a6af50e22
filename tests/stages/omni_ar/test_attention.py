"""The plain backend against brute-force attention in float64, over random block tables."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_ar.attention import AttentionMetadata, KVCache, PrefillRow, TorchPagedAttention

LAYERS, LAYER = 2, 1
BACKEND = TorchPagedAttention()


class World:
    """A cache of noise, and rows whose true keys and values are kept beside it in order."""

    def __init__(self, seed, kv_heads=2, group=3, head_dim=8, block_size=4, blocks=64, dtype=torch.float32):
        self.generator = torch.Generator().manual_seed(seed)
        self.kv_heads, self.heads, self.head_dim = kv_heads, kv_heads * group, head_dim
        self.block_size = block_size
        allocate = lambda shape, dtype: self.random(*shape).to(dtype)  # noqa: E731
        self.cache = KVCache.allocate(allocate, LAYERS, blocks, block_size, kv_heads, head_dim, dtype)
        self.free = (torch.randperm(blocks - 1, generator=self.generator) + 1).tolist()

    def random(self, *shape):
        return torch.randn(shape, generator=self.generator)

    def take_row(self, length):
        """A block table for `length` keys, a slot for each, and the keys and values `[2, length, K, D]`."""
        table = [self.free.pop() for _ in range(-(-length // self.block_size))]
        slots = [table[i // self.block_size] * self.block_size + i % self.block_size for i in range(length)]
        return table, torch.tensor(slots, dtype=torch.int64), self.random(2, length, self.kv_heads, self.head_dim)

    def write(self, slots, kv):
        self.cache.write(LAYER, kv[0], kv[1], slots)

    def queries(self, tokens):
        return self.random(tokens, self.heads, self.head_dim)


def dense(q_QHD, kv, context):
    """Query i sees keys 0 to context + i. One dot product at a time, in float64."""
    keys, values = kv.double()
    q, out = q_QHD.double(), torch.zeros(q_QHD.shape, dtype=torch.float64)
    group = q.shape[1] // keys.shape[1]
    for i in range(q.shape[0]):
        for head in range(q.shape[1]):
            seen = context + i + 1
            weight = torch.exp(keys[:seen, head // group] @ q[i, head] / q.shape[2] ** 0.5)
            out[i, head] = weight @ values[:seen, head // group] / weight.sum()
    return out


def run(world, decode_lengths, prefills, *, spare_columns=0, poison=None):
    """Writes and attends one mixed batch. prefills: (context, query) lengths. Returns (ours, dense)."""
    decodes = [world.take_row(length) for length in decode_lengths]
    prompts = [world.take_row(context + query) for context, query in prefills]
    for (_, slots, kv), (context, _query) in zip(prompts, prefills, strict=True):
        world.write(slots[:context], kv[:, :context])
    for _, slots, kv in decodes:
        world.write(slots[:-1], kv[:, :-1])
    new = [(s[-1:], kv[:, -1:]) for _, s, kv in decodes]
    new += [(s[context:], kv[:, context:]) for (_, s, kv), (context, _) in zip(prompts, prefills, strict=True)]
    slots_T = torch.cat([slots for slots, _ in new])
    world.write(slots_T, torch.cat([kv for _, kv in new], 1))
    if poison is not None:
        poison([slots for _, slots, _ in decodes + prompts])

    columns = max((len(table) for table, _, _ in decodes), default=0) + spare_columns
    rows, start = [], len(decodes)
    for (table, _, _), (context, query) in zip(prompts, prefills, strict=True):
        rows.append(PrefillRow(start, query, context, torch.tensor(table + [0] * spare_columns)))
        start += query
    meta = AttentionMetadata(
        slots_T=slots_T,
        num_decode=len(decodes),
        decode_block_table_RM=torch.tensor([t + [0] * (columns - len(t)) for t, _, _ in decodes], dtype=torch.int64),
        decode_lengths_R=torch.tensor(decode_lengths, dtype=torch.int64),
        decode_max_length=max(decode_lengths, default=0),
        prefills=tuple(rows),
    )
    q = world.queries(start)
    expected = [dense(q[i : i + 1], kv, kv.shape[1] - 1) for i, (_, _, kv) in enumerate(decodes)]
    expected += [
        dense(q[row.start : row.start + row.query_length], kv, row.context_length)
        for row, (_, _, kv) in zip(rows, prompts, strict=True)
    ]
    return BACKEND.attend(q, world.cache, LAYER, meta), torch.cat(expected)


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
)
def test_mixed_batches(seed, decode_lengths, prefills, heads, block_size, spare_columns):
    if not decode_lengths and not prefills:
        decode_lengths = [1]
    world = World(seed, kv_heads=heads[0], group=heads[1], block_size=block_size, blocks=128)
    check(run(world, decode_lengths, prefills, spare_columns=spare_columns))


def test_the_bound_on_lengths_may_be_loose():
    world = World(1)
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
    world = World(2)
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
    world = World(3)

    def poison(rows):
        kept = torch.cat(rows)
        for pages in (world.cache.key, world.cache.value):
            flat = pages[LAYER].flatten(0, 1)
            values = flat[kept].clone()
            flat.fill_(float("nan"))
            flat[kept] = values

    check(run(world, [1, 5, 10], [(3, 6), (0, 2)], spare_columns=2, poison=poison))


def test_a_row_without_keys_gives_zeros_and_leaves_the_others_alone():
    world = World(4)
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
    world = World(5)
    before = world.cache.key.clone()
    kv = world.random(2, 3, world.kv_heads, world.head_dim)
    world.cache.write(LAYER, kv[0], kv[1], torch.tensor([0, 9, 0]))
    changed = (world.cache.key != before).flatten(3).any(-1)
    assert changed.nonzero().tolist() == [[LAYER, 0, 0], [LAYER, 2, 1]]
    assert torch.equal(world.cache.key[LAYER, 2, 1], kv[0, 1])
    assert torch.equal(world.cache.value[LAYER, 2, 1], kv[1, 1])


def test_bf16():
    world = World(6, dtype=torch.bfloat16)
    world.queries = lambda tokens: world.random(tokens, world.heads, world.head_dim).bfloat16()
    ours, expected = run(world, [1, 9], [(4, 5), (0, 3)])
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.double(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("decode_lengths", [[], [3]])
@pytest.mark.parametrize("prefills", [[(0, 1)], [(7, 1), (0, 1)]])
def test_one_token_prompts(decode_lengths, prefills):
    check(run(World(7), decode_lengths, prefills))
