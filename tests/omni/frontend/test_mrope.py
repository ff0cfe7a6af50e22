"""Multimodal rotary positions against transformers' `get_rope_index`."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from omni.frontend.mrope import Grid, mrope_positions
from omni_qwen3_omni.audio_plan import encoded_frames
from tests.support.reference import reference_of, tiny_checkpoint

TEXT = st.integers(1, 9)
IMAGE = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)).map(lambda g: (g[0], 2 * g[1], 2 * g[2]))
SOUND = st.integers(1, 450)
Part = int | Grid | tuple[int]
PARTS = st.lists(st.one_of(TEXT, IMAGE, SOUND.map(lambda frames: (frames,))), min_size=1, max_size=7)


def _lay_out(parts: list[Part]) -> tuple[NDArray[np.int64], list[Grid], list[int]]:
    """Token ids of parts, the grids of their images and the mel frames of their sounds."""
    config = reference_of(tiny_checkpoint()).model.config.thinker_config
    ids: list[int] = []
    grids: list[Grid] = []
    sounds: list[int] = []
    for part in parts:
        match part:
            case int(words):
                ids += [5] * words
            case (frames,):
                sounds.append(frames)
                length = encoded_frames(frames, config.audio_config.n_window)
                ids += [config.audio_start_token_id, *[config.audio_token_id] * length, config.audio_end_token_id]
            case (time, height, width):
                grids.append((time, height, width))
                length = time * height * width // 4
                ids += [config.vision_start_token_id, *[config.image_token_id] * length, config.vision_end_token_id]
    return np.array(ids), grids, sounds


@pytest.mark.parametrize("part", ["thinker", "talker"])
@given(parts=PARTS)
def test_positions_are_those_of_transformers(part: str, parts: list[Part]) -> None:
    """A talker's sequence is laid out by the same rule."""
    whole = reference_of(tiny_checkpoint()).model
    model = whole.thinker if part == "thinker" else whole.talker
    ids, grids, sounds = _lay_out(parts)
    ids_1T = torch.tensor(ids)[None]
    expected_P1T, delta_11 = model.get_rope_index(
        ids_1T,
        torch.tensor(grids) if grids else None,
        None,
        torch.ones_like(ids_1T),
        False,
        torch.tensor(sounds) if sounds else None,
        None,
    )

    positions_PT, next_position = mrope_positions(
        ids,
        grids,
        image_token=model.config.image_token_id,
        merge=model.spatial_merge_size,
        per_second=model.config.position_id_per_seconds,
    )

    assert positions_PT.dtype == np.int64
    assert positions_PT.tolist() == expected_P1T[:, 0].tolist()
    assert next_position == len(ids) + int(delta_11)


def test_pictures_side_by_side() -> None:
    """No text between them: the second starts behind the largest position of the first."""
    positions_PT, next_position = mrope_positions(
        np.array([7] * 2 + [7] * 4), [(1, 2, 4), (1, 4, 4)], image_token=7, merge=2, per_second=13
    )

    assert positions_PT.tolist() == [[0, 0, 2, 2, 2, 2], [0, 0, 2, 2, 3, 3], [0, 1, 2, 3, 2, 3]]
    assert next_position == 4
