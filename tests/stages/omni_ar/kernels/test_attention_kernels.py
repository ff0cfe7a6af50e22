"""The attention kernels against brute-force attention in float64: tiny under the interpreter, and random shapes on a GPU."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import triton
import triton.language as tl

from omni_ar.attention import TritonPagedAttention
from omni_ar.kernels.attention.settings import decode_settings as chosen_settings
from tests.stages.omni_ar.kernels.attention_runs import DEVICE, attend, capture, decode_settings
from tests.stages.omni_ar.paged_rows import LAYER, PagedRows, check_attention, mixed_batch, positions_batch
from tests.support.exact import served

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    ("splits", "fused", "decodes", "prefills", "shape"),
    [
        pytest.param(1, True, [1, 16, 17], [(0, 5)], {"head_dim": 16, "block_size": 16}, id="one split"),
        pytest.param(4, True, [0, 3, 35], [], {"head_dim": 16, "block_size": 8}, id="splits"),
        pytest.param(4, False, [70, 0, 33], [], {"head_dim": 16, "block_size": 8}, id="a kernel that adds up"),
        pytest.param(2, True, [40], [(7, 1), (0, 1)], {"kv_heads": 1, "group": 1}, id="one head"),
        pytest.param(2, True, [], [(0, 20), (30, 3), (5, 18)], {"group": 4, "head_dim": 24}, id="chunks"),
        pytest.param(2, True, [5], [(9, 3)], {"kv_heads": 1, "group": 11}, id="many heads on one"),
        pytest.param(2, True, [20, 1], [(3, 9)], {"group": 3, "head_dim": 20, "block_size": 3}, id="odd sizes"),
    ],
)
def test_kernels_give_exact_attention(splits, fused, decodes, prefills, shape):
    world = PagedRows(splits, device=DEVICE, **shape)
    q, meta, expected = mixed_batch(world, decodes, prefills, spare_columns=2, poison=world.poison)
    check_attention(attend(world, q, meta, decode_settings(splits, fused)), expected)


@pytest.mark.parametrize(
    ("prefills", "spare", "shape"),
    [
        pytest.param([(3, 9), (0, 8), (17, 1)], (2, 15), {"group": 2}, id="tokens and rows"),
        pytest.param([(0, 1), (5, 1), (9, 9)], (0, 3), {"group": 2}, id="every row with a last tile"),
        pytest.param([(2, 5)], (3, 0), {"group": 3, "head_dim": 20, "block_size": 3}, id="rows alone"),
        pytest.param([], (4, 21), {"group": 4}, id="no chunks"),
    ],
)
def test_unused_rows_of_a_captured_batch_are_zero(prefills, spare, shape):
    world = PagedRows(3, device=DEVICE, **shape)
    q, meta, expected = mixed_batch(world, [0, 7], prefills, spare=spare, poison=world.poison)
    check_attention(attend(world, q, meta, decode_settings(1)), expected)


@pytest.mark.parametrize(
    ("splits", "fused", "lengths", "shape"),
    [
        pytest.param(1, True, [[20, 21, 0], [1, 2, 3], [0, 0, 0]], {}, id="one split"),
        pytest.param(4, True, [[15, 16, 17, 18], [64, 0, 0, 64]], {"group": 4}, id="a position in a further tile"),
        pytest.param(4, False, [[47, 48, 49], [0, 0, 0], [16, 17, 0]], {"group": 5}, id="a kernel that adds up"),
        pytest.param(4, True, [[31, 32, 33, 34, 35], [40, 41, 42, 0, 0]], {"group": 7}, id="several programs"),
        pytest.param(
            2,
            False,
            [[31, 32, 33, 34, 35], [9, 9, 9, 9, 9]],
            {"group": 7},
            id="several programs, a kernel that adds up",
        ),
        pytest.param(2, True, [[18, 19]], {"group": 20, "kv_heads": 1}, id="one position in a program"),
    ],
)
def test_positions_of_a_row_share_its_keys(splits, fused, lengths, shape):
    world = PagedRows(splits, device=DEVICE, **shape)
    q, meta, expected = positions_batch(world, lengths, poison=world.poison)
    check_attention(attend(world, q, meta, decode_settings(splits, fused)), expected)


@pytest.mark.parametrize("positions", [1, 5])
def test_as_many_counters_as_programs_are_enough(positions):
    """With one fewer a second kernel adds the parts up; none behind them is touched."""
    world = PagedRows(positions, group=7, device=DEVICE)
    programs = 2 * (1 if positions == 1 else 3) * 2
    lengths = [[33 + index for index in range(positions)], [48 + index for index in range(positions)]]
    q, meta, expected = positions_batch(world, lengths, poison=world.poison)
    for counters in (programs, programs - 1):
        check_attention(attend(world, q, meta, decode_settings(4), counters=counters), expected)


def test_queries_may_be_a_part_of_something_wider():
    world = PagedRows(1, device=DEVICE)
    q, meta, expected = mixed_batch(world, [9], [(2, 3)])
    wide = torch.full((q.shape[0], 3 * q.shape[1], q.shape[2]), float("nan"), device=q.device)
    wide[:, : q.shape[1]] = q
    check_attention(attend(world, wide[:, : q.shape[1]], meta, decode_settings(2)), expected)


def test_splits_add_up_to_the_same_in_every_run():
    world = PagedRows(2, device=DEVICE)
    q, meta, _ = mixed_batch(world, [50, 33], [])
    runs = [attend(world, q, meta, decode_settings(4, fused)) for fused in (True, True, False)]
    assert torch.equal(runs[0], runs[1])
    torch.testing.assert_close(runs[0], runs[2], rtol=1e-6, atol=1e-6)


HEAD_DIMS = [16, 64, 80, 96, 128, 192, 256]
HEADS = [(1, 1), (8, 2), (4, 8), (2, 8), (1, 16), (2, 3), (1, 24)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_random_shapes_with_chosen_settings(dtype, head_dim, omni_device):
    """The backend with the settings that it would choose."""
    chance = random.Random(f"{dtype}{head_dim}")
    kv_heads, group = chance.choice(HEADS)
    block_size = chance.choice([5, 8, 16, 16, 32, 64])
    for seed in range(8):
        longest = chance.choice([3, 40, 300, 3000])
        lengths = [chance.randint(0, longest) for _ in range(chance.choice([0, 1, 30]))]
        chunks = [(chance.choice([0, chance.randint(1, longest)]), chance.randint(1, longest)) for _ in range(seed % 4)]
        if not lengths and not chunks:
            lengths = [longest]
        blocks = 2 + sum(-(-length // block_size) for length in [*lengths, *(sum(chunk) for chunk in chunks)])
        world = PagedRows(seed, kv_heads, group, head_dim, block_size, blocks, dtype, "cuda")
        spare = (chance.randint(0, 16), chance.choice([0, 1, 40, 1000])) if seed % 2 else None
        q, meta, expected = mixed_batch(
            world, lengths, chunks, spare_columns=seed % 3 * 50, spare=spare, poison=world.poison
        )
        backend = TritonPagedAttention(omni_device)
        ours = backend.attend(q, world.cache, LAYER, meta)
        check_attention(ours, expected)
        assert torch.equal(backend.attend(q, world.cache, LAYER, meta), ours)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
def test_random_positions_with_chosen_settings(dtype, head_dim, omni_device):
    chance = random.Random(f"positions {dtype}{head_dim}")
    for seed, (kv_heads, group) in enumerate(HEADS):
        positions, rows = chance.choice([2, 3, 4, 9, 16]), chance.choice([1, 5, 24])
        firsts = [chance.randint(0, chance.choice([3, 40, 300, 3000])) for _ in range(rows)]
        lengths = []
        for first in firsts:
            drafts = chance.randint(0, positions - 1)
            live = [first + index for index in range(1 + drafts)] if first else []
            lengths.append(live + [chance.choice([0, first])] * (positions - len(live)))
        block_size = chance.choice([5, 16, 16, 64])
        blocks = 2 + sum(-(-max(row) // block_size) for row in lengths)
        world = PagedRows(seed, kv_heads, group, head_dim, block_size, blocks, dtype, "cuda")
        if not any(map(max, lengths)):
            continue
        q, meta, expected = positions_batch(world, lengths, poison=world.poison)
        backend = TritonPagedAttention(omni_device)
        ours = backend.attend(q, world.cache, LAYER, meta)
        check_attention(ours, expected)
        assert torch.equal(backend.attend(q, world.cache, LAYER, meta), ours)


@pytest.mark.gpu
@pytest.mark.parametrize(("kv_heads", "group", "positions"), [served(8, 4, 4), served(4, 8, 4), served(4, 8, 9)])
def test_positions_with_heads_of_served_models(kv_heads, group, positions, omni_device):
    world = PagedRows(0, kv_heads, group, 128, 16, 100, torch.bfloat16, "cuda")
    lengths = [[first + index for index in range(positions)] for first in (300, 63, 700)]
    q, meta, expected = positions_batch(world, lengths, poison=world.poison)
    check_attention(TritonPagedAttention(omni_device).attend(q, world.cache, LAYER, meta), expected)


# Heads that were measured, small: parts added up by the last split to finish, and by a second kernel.
@pytest.mark.gpu
@pytest.mark.parametrize(("kv_heads", "group", "lengths"), [served(8, 2, [300, 70]), served(4, 8, [700])])
def test_heads_of_served_models(kv_heads, group, lengths, omni_device):
    world = PagedRows(0, kv_heads, group, 128, 16, 100, torch.bfloat16, "cuda")
    q, meta, expected = mixed_batch(world, lengths, [(40, 100), (0, 70)], spare_columns=9, poison=world.poison)
    check_attention(TritonPagedAttention(omni_device).attend(q, world.cache, LAYER, meta), expected)


@pytest.mark.gpu
@pytest.mark.parametrize(("kv_heads", "group", "rows"), [(8, 2, 32), (4, 8, 64), (4, 7, 8), (4, 7, 64)])
def test_settings_that_limit_registers(kv_heads, group, rows, omni_device):
    chance = random.Random(rows)
    lengths = [chance.randint(0, 900) for _ in range(rows)]
    world = PagedRows(rows, kv_heads, group, 128, 16, 2 + rows * 57, torch.bfloat16, "cuda")
    q, meta, expected = mixed_batch(world, lengths, [], poison=world.poison)
    if "H200" in torch.cuda.get_device_name():
        assert chosen_settings(q, world.cache.key[LAYER]).registers == 128
    check_attention(TritonPagedAttention(omni_device).attend(q, world.cache, LAYER, meta), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [1, 3])
def test_long_contexts_in_splits(dtype, rows, omni_device):
    lengths = [65_000, 1, 32_768][:rows]
    world = PagedRows(rows, 2, 8, 128, 16, 2 + sum(-(-length // 16) for length in lengths) + 700, dtype, "cuda")
    q, meta, expected = mixed_batch(world, lengths, [(11_000, 40)][: rows - 1], poison=world.poison)
    check_attention(TritonPagedAttention(omni_device).attend(q, world.cache, LAYER, meta), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_a_captured_step_reads_lengths_and_tables_when_it_is_replayed(rows, omni_device):
    chance = random.Random(rows)
    world = PagedRows(0, 4, 8, 128, 16, 1 + rows * 40, torch.bfloat16, "cuda")
    q, meta, _ = mixed_batch(world, [1] * rows, [], spare_columns=36)
    backend = TritonPagedAttention(omni_device)
    graph, captured = capture(backend, q, world, meta)
    for _ in range(4):
        taken = PagedRows(1, 4, 8, 128, 16, 1 + rows * 40, torch.bfloat16, "cuda")
        taken.cache = world.cache
        lengths = [chance.choice([0, 1, chance.randint(2, 590)]) for _ in range(rows)]
        new_q, new, expected = mixed_batch(taken, lengths, [])
        q.copy_(new_q)
        meta.decode_lengths_R.copy_(new.decode_lengths_R)
        meta.decode_block_table_RM.zero_()
        meta.decode_block_table_RM[:, : new.decode_block_table_RM.shape[1]] = new.decode_block_table_RM
        graph.replay()
        check_attention(captured, expected)


@triton.jit
def _late_copy(from_ptr, to_ptr, count, BLOCK: tl.constexpr, NANOSECONDS: tl.constexpr):
    """Lets the next kernel start, and writes only some time later."""
    tl.extra.cuda.gdc_launch_dependents()
    start = tl.extra.cuda.globaltimer()
    while tl.extra.cuda.globaltimer() - start < NANOSECONDS:
        pass
    tl.extra.cuda.gdc_wait()
    at = tl.arange(0, BLOCK)
    tl.store(to_ptr + at, tl.load(from_ptr + at, mask=at < count), mask=at < count)


@pytest.mark.gpu
@pytest.mark.parametrize("stale", [-7, 0, 2**40])
def test_tables_and_lengths_that_come_after_the_prefetch(stale):
    """The previous kernel writes both while decode attention already prefetches by their old values."""
    world = PagedRows(0, 8, 2, 128, 16, 200, torch.bfloat16, "cuda")
    q, meta, expected = mixed_batch(world, [300, 1, 0, 577], [])
    known = torch.cat([meta.decode_block_table_RM.flatten(), meta.decode_lengths_R])
    late = torch.full_like(known, stale)
    table, lengths = late[: -len(q)].view(len(q), -1), late[-len(q) :]
    meta = replace(meta, decode_block_table_RM=table, decode_lengths_R=lengths)
    lengths.fill_(500)
    torch.cuda.synchronize()
    size = triton.next_power_of_2(known.numel())
    _late_copy[(1,)](known, late, known.numel(), BLOCK=size, NANOSECONDS=200_000, launch_pdl=True)
    check_attention(attend(world, q, meta, decode_settings(4)), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [48, 512, 2048])
@pytest.mark.parametrize("decodes", [0, 16])
def test_a_captured_prompt_reads_chunks_when_it_is_replayed(tokens, decodes, omni_device):
    """Other chunks of other rows in every replay, and padding behind them."""
    chance, chunks = random.Random(tokens + decodes), 16
    blocks = 2 + decodes * 40 + 8 * tokens // 16 + chunks * 64
    world = PagedRows(0, 4, 8, 128, 16, blocks, torch.bfloat16, "cuda")
    columns = 64 + tokens // 16
    q, meta, _ = mixed_batch(world, [1] * decodes, [], spare=(chunks, tokens))
    meta = replace(
        meta,
        decode_block_table_RM=torch.zeros(decodes, columns, dtype=torch.int64, device="cuda"),
        decode_max_length=columns * 16,
        block_table_NM=torch.zeros(decodes + chunks, columns, dtype=torch.int64, device="cuda"),
    )
    backend = TritonPagedAttention(omni_device)
    q.zero_()
    graph, captured = capture(backend, q, world, meta)
    for count in (0, 1, 3, chunks):
        taken = PagedRows(count, 4, 8, 128, 16, blocks, torch.bfloat16, "cuda")
        taken.cache = world.cache
        cuts = sorted(chance.sample(range(1, tokens), count))
        queries = [end - begin for begin, end in pairwise([0, *cuts])]
        prefills = [(chance.choice([0, chance.randint(1, 900)]), length) for length in queries]
        lengths = [chance.choice([0, chance.randint(1, 600)]) for _ in range(decodes)]
        spare = (chunks - count, tokens - sum(queries))
        new_q, new, expected = mixed_batch(taken, lengths, prefills, spare=spare)
        q.copy_(new_q)
        meta.decode_lengths_R.copy_(new.decode_lengths_R)
        assert meta.prefill_rows_P4 is not None
        assert new.prefill_rows_P4 is not None
        assert meta.block_table_NM is not None
        assert new.block_table_NM is not None
        meta.prefill_rows_P4.copy_(new.prefill_rows_P4)
        width = new.block_table_NM.shape[1]
        meta.block_table_NM[: len(new.block_table_NM), :width] = new.block_table_NM
        meta.decode_block_table_RM[:, :width] = new.decode_block_table_RM
        graph.replay()
        check_attention(captured, expected)


@pytest.fixture
def omni_device():
    from omni.device import open_device

    return open_device("cuda:0")
