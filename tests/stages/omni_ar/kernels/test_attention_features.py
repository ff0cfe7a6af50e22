"""Window, softcap, ALiBi, sinks and scale in the attention kernels against brute-force attention in float64: tiny under the
interpreter, and random shapes on a GPU. Keys and values outside of a window are NaN, so a kernel that reads them gives NaN."""

import random

import pytest
import torch

from omni.device import open_device
from omni_ar.attention import AttentionFeatures, TritonPagedAttention
from tests.stages.omni_ar.kernels.attention_runs import DEVICE, attend, capture, decode_settings
from tests.stages.omni_ar.paged_rows import LAYER, PagedRows, check_attention, mixed_batch, positions_batch
from tests.support.exact import served
from tests.support.tiers import chosen

pytestmark = pytest.mark.thorough

EACH = ["scale", "softcap", "alibi_slopes", "window", "sinks"]
SETS = [*EACH, "softcap window scale", "window sinks", "alibi_slopes sinks", " ".join(EACH)]
FEW = ["scale", "softcap", "window sinks", "alibi_slopes", " ".join(EACH)]
"""Each at least once, and all together."""


@pytest.mark.parametrize("names", chosen(FEW, SETS))
def test_decode_rows_with_features(names):
    world = PagedRows(1, kv_heads=2, group=3, block_size=8, device=DEVICE)
    features = world.features(names, window=20)
    q, meta, expected = mixed_batch(world, [0, 3, 53], [], spare_columns=1, poison=world.poison, features=features)
    for splits, fused in [(4, True), (4, False)]:
        check_attention(attend(world, q, meta, decode_settings(splits, fused), features=features), expected)


@pytest.mark.parametrize("names", chosen(FEW, SETS))
def test_positions_of_a_row_with_features(names):
    """Windows of a row's positions begin at different keys, here in different tiles."""
    world = PagedRows(1, kv_heads=2, group=3, block_size=8, device=DEVICE)
    features = world.features(names, window=20)
    lengths = [[50, 51, 52, 53], [0, 0, 0, 0], [19, 20, 0, 19], [35, 36, 37, 0]]
    q, meta, expected = positions_batch(world, lengths, poison=world.poison, features=features)
    for splits, fused in [(4, True), (4, False)]:
        check_attention(attend(world, q, meta, decode_settings(splits, fused), features=features), expected)


@pytest.mark.parametrize("names", chosen(FEW, SETS))
def test_chunks_with_features(names):
    world = PagedRows(2, kv_heads=2, group=2, block_size=8, device=DEVICE)
    features = world.features(names, window=20)
    q, meta, expected = mixed_batch(world, [], [(0, 9), (37, 11)], spare=(1, 3), poison=world.poison, features=features)
    check_attention(attend(world, q, meta, decode_settings(1), features=features), expected)


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 40, 100])
def test_windows_of_all_sizes(window):
    """Against tiles of 16 keys and of 16 tokens."""
    world = PagedRows(3, kv_heads=1, group=1, block_size=8, device=DEVICE)
    features = AttentionFeatures(window=window)
    q, meta, expected = mixed_batch(world, [1, 48, 50], [(35, 20)], poison=world.poison, features=features)
    check_attention(attend(world, q, meta, decode_settings(2), features=features), expected)


def test_a_window_costs_its_contents_and_no_more():
    """The tables of blocks before it hold what no cache has, which the interpreter would fail to load."""
    world = PagedRows(4, kv_heads=1, group=1, block_size=16, device=DEVICE)
    features = AttentionFeatures(window=16)
    q, meta, expected = mixed_batch(world, [160], [(140, 4)], features=features)
    assert meta.block_table_NM is not None
    meta.block_table_NM[:, :7] = 2**40
    check_attention(attend(world, q, meta, decode_settings(4), features=features), expected)


def test_scores_far_beyond_a_softcap_and_sinks_far_apart():
    world = PagedRows(5, kv_heads=1, group=2, device=DEVICE)
    features = AttentionFeatures(scale=300.0, softcap=2.0, sinks=torch.tensor([-80.0, 80.0], device=DEVICE))
    q, meta, expected = mixed_batch(world, [40], [(3, 5)], features=features)
    check_attention(attend(world, q, meta, decode_settings(2), features=features), expected)


HEAD_DIMS = [16, 64, 80, 128, 256]
HEADS = [(1, 1), (8, 2), (4, 8), (2, 8), (1, 16), (2, 3)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_features_with_random_shapes_and_chosen_settings(dtype, head_dim, omni_device):
    """The backend with the settings that it would choose."""
    chance = random.Random(f"{dtype}{head_dim}")
    kv_heads, group = chance.choice(HEADS)
    block_size = chance.choice([5, 16, 16, 32])
    for seed, names in enumerate(SETS):
        longest = chance.choice([3, 40, 300, 3000])
        lengths = [chance.randint(0, longest) for _ in range(chance.choice([1, 30]))]
        chunks = [(chance.choice([0, chance.randint(1, longest)]), chance.randint(1, longest)) for _ in range(seed % 3)]
        blocks = 2 + sum(-(-length // block_size) for length in [*lengths, *(sum(chunk) for chunk in chunks)])
        world = PagedRows(seed, kv_heads, group, head_dim, block_size, blocks, dtype, "cuda")
        features = world.features(names, window=chance.choice([1, 17, 128, 1000]))
        spare = (chance.randint(0, 16), chance.choice([0, 1, 40])) if seed % 2 else None
        q, meta, expected = mixed_batch(
            world, lengths, chunks, spare_columns=seed % 3 * 50, spare=spare, poison=world.poison, features=features
        )
        backend = TritonPagedAttention(omni_device)
        ours = backend.attend(q, world.cache, LAYER, meta, features)
        check_attention(ours, expected)
        assert torch.equal(backend.attend(q, world.cache, LAYER, meta, features), ours)


@pytest.mark.gpu
@pytest.mark.parametrize("names", [served("softcap window scale"), served("alibi_slopes sinks")])
def test_features_with_heads_of_served_models(names, omni_device):
    world = PagedRows(0, 8, 2, 128, 16, 100, torch.bfloat16, "cuda")
    features = world.features(names, window=50)
    q, meta, expected = mixed_batch(
        world, [300, 70], [(40, 100), (0, 70)], spare_columns=9, poison=world.poison, features=features
    )
    check_attention(TritonPagedAttention(omni_device).attend(q, world.cache, LAYER, meta, features), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("names", ["window", " ".join(EACH)])
def test_features_over_long_contexts(names, omni_device):
    lengths = [65_000, 1, 32_768]
    world = PagedRows(1, 2, 8, 128, 16, 2 + sum(-(-length // 16) for length in lengths) + 700, torch.bfloat16, "cuda")
    features = world.features(names, window=4096)
    q, meta, expected = mixed_batch(world, lengths, [(11_000, 40)], poison=world.poison, features=features)
    check_attention(TritonPagedAttention(omni_device).attend(q, world.cache, LAYER, meta, features), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("names", ["window sinks", " ".join(EACH)])
def test_a_captured_step_reads_lengths_when_it_is_replayed(names, omni_device):
    rows, chance = 8, random.Random(names)
    world = PagedRows(0, 4, 8, 128, 16, 1 + rows * 40, torch.bfloat16, "cuda")
    features = world.features(names, window=100)
    q, meta, _ = mixed_batch(world, [1] * rows, [], spare_columns=36)
    backend = TritonPagedAttention(omni_device)
    graph, captured = capture(backend, q, world, meta, features)
    for _ in range(4):
        taken = PagedRows(1, 4, 8, 128, 16, 1 + rows * 40, torch.bfloat16, "cuda")
        taken.cache = world.cache
        lengths = [chance.choice([0, 1, chance.randint(2, 590)]) for _ in range(rows)]
        new_q, new, expected = mixed_batch(taken, lengths, [], features=features)
        q.copy_(new_q)
        meta.decode_lengths_R.copy_(new.decode_lengths_R)
        meta.decode_block_table_RM.zero_()
        meta.decode_block_table_RM[:, : new.decode_block_table_RM.shape[1]] = new.decode_block_table_RM
        graph.replay()
        check_attention(captured, expected)


@pytest.fixture
def omni_device():
    return open_device("cuda:0")
