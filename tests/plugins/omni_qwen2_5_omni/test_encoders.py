"""The towers' batches, padded and not, against transformers' own forward pass on each item alone."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from omni_encoder.model import EncoderModel
from omni_qwen2_5_omni.encoders import AudioEncoder, VisionEncoder, build_audio, build_vision, embedded_frames
from tests.support.tiny_qwen2_5_omni import stage_context, tiny_folder
from tests.support.tower import encode

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def audio() -> AudioEncoder:
    return build_audio(stage_context(tiny_folder(), "audio_encoder"))


@pytest.fixture(scope="module")
def vision() -> VisionEncoder:
    return build_vision(stage_context(tiny_folder(), "vision_encoder"))


def plain(tower: Any) -> Any:
    """The same tower as transformers runs it."""
    tower = copy.deepcopy(tower)
    tower.set_attn_implementation("sdpa")
    return tower


def check(model: EncoderModel, items: Sequence[Mapping[str, Tensor]], expected: Sequence[Tensor]) -> None:
    """As they are, padded as little as may be, and a lot."""
    least = model.padded_length(items)
    assert least is not None
    for lengths in ((), (least,), (least + 170,)):
        for outputs, wanted in zip(encode(model, items, lengths=lengths), expected, strict=True):
            made = outputs["embeddings"]
            assert made.shape == wanted.shape
            assert (made - wanted).abs().max() < TOLERANCE * wanted.abs().max()


def clips(frames: Sequence[int]) -> list[dict[str, Tensor]]:
    noise = torch.Generator().manual_seed(len(frames))
    return [{"features": torch.randn(128, count, generator=noise)} for count in frames]


@torch.no_grad()
@pytest.mark.parametrize("frames", [(200,), (437, 3, 600), (81, 250), (3, 4, 5), (199, 201)], ids=str)
def test_clips_are_as_transformers_encodes_them(audio: AudioEncoder, frames: tuple[int, ...]) -> None:
    """Among them ends of chunks and odd lengths, whose last token has no partner."""
    items, tower = clips(frames), plain(audio.tower)
    expected = [
        tower(item["features"], feature_lens=torch.tensor([count])).last_hidden_state
        for item, count in zip(items, frames, strict=True)
    ]
    assert [len(wanted) for wanted in expected] == [embedded_frames(count) for count in frames]
    check(audio, items, expected)


def pictures(grids: Sequence[tuple[int, int, int]], values: int) -> list[dict[str, Tensor]]:
    noise = torch.Generator().manual_seed(len(grids))
    return [
        {"pixels": torch.randn(t * h * w, values, generator=noise), "grid": torch.tensor([t, h, w])}
        for t, h, w in grids
    ]


@torch.no_grad()
@pytest.mark.parametrize(
    "grids", [((1, 4, 6),), ((1, 16, 8), (1, 2, 2), (1, 18, 10)), ((2, 10, 12), (1, 8, 8))], ids=str
)
def test_pictures_are_as_transformers_encodes_them(
    vision: VisionEncoder, grids: tuple[tuple[int, int, int], ...]
) -> None:
    """Among them whole windows, and such as are cut at the edges; pictures of several frames, too."""
    items, tower = pictures(grids, 3 * 2 * 14 * 14), plain(vision.tower)
    expected = [tower(item["pixels"], grid_thw=item["grid"][None]).pooler_output for item in items]
    check(vision, items, expected)


@torch.no_grad()
def test_planted_fault_windows_are_not_frames(vision: VisionEncoder) -> None:
    """The tiny tower's windows matter: were they as large as frames, something else would come out."""
    (item,) = pictures([(1, 16, 12)], 3 * 2 * 14 * 14)
    tower = plain(vision.tower)
    narrow = tower(item["pixels"], grid_thw=item["grid"][None]).pooler_output
    tower.window_size *= 8
    wide = tower(item["pixels"], grid_thw=item["grid"][None]).pooler_output
    assert (wide - narrow).abs().max() > 100 * TOLERANCE * narrow.abs().max()


@pytest.mark.parametrize("length", [1, 7, 50, 51, 130])
def test_largest_items_fit(audio: AudioEncoder, vision: VisionEncoder, length: int) -> None:
    for model in (audio, vision):
        item = model.largest_item(length)
        assert item.length <= length
        (outputs,) = encode(model, [item.features])
        assert len(outputs["embeddings"]) == item.length
