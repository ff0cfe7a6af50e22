"""What follows from the sizes of pictures, against transformers' own reckoning."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.vision_utils import (
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
    get_vision_window_index,
)

from omni_encoder.towers.picture_encoder import interpolation, positions, windows

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
