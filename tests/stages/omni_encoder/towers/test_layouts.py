"""Where chunks and tokens of clips are, and what follows from the sizes of pictures: against transformers' own reckoning, and
against clips cut by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import get_pool_indices
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import get_audio_cu_seqlens, get_valid_indices
from transformers.vision_utils import (
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
    get_vision_window_index,
)

from omni_encoder.towers.clip_encoder import Chunks, cut, lay_out
from omni_encoder.towers.picture_encoder import interpolation, positions, windows

CHUNKS = Chunks(frames=100, convolutions=3, run=8)


@given(frames=st.lists(st.integers(1, 2500), min_size=1, max_size=5))
@settings(max_examples=40)
def test_tokens_and_segments_are_those_of_transformers(frames: list[int]) -> None:
    """Where one clip has a full chunk."""
    frames = [100, *frames]
    batch = lay_out(frames, 8, CHUNKS, 100)
    lengths = torch.from_numpy(batch.chunks_C3[:, 2])
    assert np.array_equal(batch.tokens_T, get_valid_indices(lengths, 50).numpy())
    assert list(batch.segments) == get_audio_cu_seqlens(lengths, torch.tensor(frames), 800, 50).diff().tolist()


@given(frames=st.lists(st.integers(1, 900), min_size=1, max_size=5), window=st.integers(1, 60))
@settings(max_examples=40)
def test_pooled_tokens_are_those_of_transformers(frames: list[int], window: int) -> None:
    batch = lay_out(frames, 8, Chunks(frames=2 * window, convolutions=1, pool=2), 2 * window)
    tokens = [(count - 1) // 2 + 1 for count in frames]
    assert np.array_equal(batch.firsts_E, get_pool_indices(torch.tensor(frames)).numpy())
    assert sum(batch.segments) == len(batch.tokens_T) == sum(tokens)
    assert batch.sizes == tuple(count // 2 for count in tokens)


@pytest.mark.parametrize("padded", [7, 10])
def test_chunks_are_cut_from_clips_with_zeros_behind(padded: int) -> None:
    chunks = Chunks(frames=10, convolutions=1)
    frames = (7, 3) if padded == 7 else (23, 3, 10)
    noise = torch.Generator().manual_seed(7)
    clips = [torch.randn(4, count, generator=noise) for count in frames]
    expected = [part for clip in clips for part in clip.split(10, dim=1)]
    batch = lay_out(frames, 4, chunks, padded)

    values = torch.cat([clip.flatten() for clip in clips])
    made = cut(values, torch.from_numpy(batch.chunks_C3), torch.arange(padded), 4)

    assert made.shape == (len(expected), 4, padded)
    for chunk, part in zip(made, expected, strict=True):
        assert torch.equal(chunk, torch.nn.functional.pad(part, (0, padded - part.shape[1])))


@pytest.mark.parametrize("chunks", [CHUNKS, Chunks(frames=200, convolutions=1, pool=2)], ids=str)
def test_the_longest_clip_of_so_many_embeddings_leaves_no_token_over(chunks: Chunks) -> None:
    for length in range(1, 300):
        frames = chunks.longest(length)
        assert chunks.embeddings(frames) == length
        assert chunks.tokens(frames) < chunks.tokens(frames + 1)


GRIDS = st.lists(st.tuples(st.integers(1, 2), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3)


@given(grids=GRIDS, merge=st.integers(1, 2), side=st.integers(2, 48))
@settings(max_examples=40)
def test_positions_are_those_of_transformers(grids: list[tuple[int, int, int]], merge: int, side: int) -> None:
    frames = [(height * merge, width * merge) for time, height, width in grids for _ in range(time)]
    grid_thw = torch.tensor([(time, height * merge, width * merge) for time, height, width in grids])
    taps, weights = get_vision_interpolation_indices_and_weights(
        grid_thw, side, "bilinear", align_corners=True, spatial_merge_size=merge
    )
    places = [positions(height, width, merge) for height, width in frames]
    assert np.array_equal(np.concatenate(places), get_vision_position_ids(grid_thw, merge).numpy())
    found = [interpolation(height, width, merge, side) for height, width in frames]
    assert np.array_equal(np.concatenate([part for part, _ in found]), taps.numpy())
    assert np.array_equal(np.concatenate([part for _, part in found]), weights.numpy())


@given(grids=GRIDS, merge=st.integers(1, 2), side=st.integers(1, 5))
@settings(max_examples=40)
def test_windows_are_those_of_transformers(grids: list[tuple[int, int, int]], merge: int, side: int) -> None:
    grid_thw = torch.tensor([(time, height * merge, width * merge) for time, height, width in grids])
    order, bounds = get_vision_window_index(grid_thw, merge, side * merge * 14, 14)
    start, made = 0, []
    for time, height, width in grids:
        for _ in range(time):
            made += [start + window for window in windows(height, width, side)]
            start += height * width
    assert np.array_equal(np.concatenate(made), order.numpy())
    assert [len(window) * merge**2 for window in made] == bounds.diff().tolist()
