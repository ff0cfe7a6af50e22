"""Media in prompts: placeholders repeated and found again, against counting them one by one; and pictures of any size."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers import Qwen2VLImageProcessorPil

from omni.errors import InputError
from omni.frontend.base import ImagePart
from omni.frontend.media import Media, expand, picture

SOUND, IMAGE = 7, 8
PROMPTS = st.lists(st.one_of(st.integers(0, 6), st.tuples(st.sampled_from([SOUND, IMAGE]), st.integers(1, 4))))


@given(parts=PROMPTS)
def test_each_medium_has_its_own_positions(parts: list[Any]) -> None:
    media: dict[int, list[Media]] = {SOUND: [], IMAGE: []}
    expected: list[int] = []
    positions: dict[int, list[list[int]]] = {SOUND: [], IMAGE: []}
    for part in parts:
        token, length = part if isinstance(part, tuple) else (part, 1)
        if isinstance(part, tuple):
            media[token].append(Media({}, length, "key"))
            positions[token].append(list(range(len(expected), len(expected) + length)))
        expected += [token] * length
    short = np.array([part[0] if isinstance(part, tuple) else part for part in parts], np.int64)

    ids, found = expand(short, media)

    assert ids.tolist() == expected
    assert {token: [each.tolist() for each in pieces] for token, pieces in found.items()} == positions


def test_pictures_are_the_processors_patches() -> None:
    processor = Qwen2VLImageProcessorPil()
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 100, 3), np.uint8))
    made = picture(processor, ImagePart(image, "field"), 2)
    expected = processor(images=[image], return_tensors="pt")
    assert torch.equal(made.tensors["pixels"], expected["pixel_values"])
    assert made.tensors["grid"].tolist() == list(made.grid) == expected["image_grid_thw"][0].tolist()
    assert made.length == len(expected["pixel_values"]) // 4
    other = picture(processor, ImagePart(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), "field"), 2)
    assert made.key == picture(processor, ImagePart(image.copy(), "elsewhere"), 2).key != other.key


@pytest.mark.parametrize("size", [(401, 2), (2, 401)])
def test_very_long_and_narrow_pictures_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(InputError, match=r"^field: is \d+ x \d+ pixels, more than 200 times as long as wide; crop it"):
        picture(Qwen2VLImageProcessorPil(), ImagePart(Image.new("RGB", size), "field"), 2)
