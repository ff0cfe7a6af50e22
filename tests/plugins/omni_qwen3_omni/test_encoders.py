"""The towers' batches, padded and not, against transformers' own forward pass on each item alone."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from omni.checkpoint import Checkpoint
from omni.device.cpu import CpuDevice
from omni.stage import StageContext
from omni_encoder.model import EncoderModel
from omni_qwen3_omni.encoders import AudioEncoder, VisionEncoder, build_audio, build_vision
from omni_qwen3_omni.pipeline import pipeline
from tests.support.reference import sizes, tiny_checkpoint
from tests.support.tower import encode

SHAPE = sizes(seed=81, deepstack=(0, 1))
TOLERANCE = 1e-5


def context(stage: str) -> StageContext:
    checkpoint = Checkpoint(tiny_checkpoint(**SHAPE))
    node = pipeline(checkpoint).stage(stage)
    return StageContext(node, node.options, checkpoint, CpuDevice(), torch.float32, "auto")


def plain(tower: Any) -> Any:
    """The same tower as transformers runs it."""
    tower = copy.deepcopy(tower)
    tower.set_attn_implementation("sdpa")
    return tower


@pytest.fixture(scope="module")
def audio() -> AudioEncoder:
    return build_audio(context("audio_encoder"))


@pytest.fixture(scope="module")
def vision() -> VisionEncoder:
    return build_vision(context("vision_encoder"))


def clips(frames: Sequence[int], bins: int, chunk: int) -> list[dict[str, Tensor]]:
    noise = torch.Generator().manual_seed(len(frames))
    return [{"features": torch.randn(bins, n, generator=noise), "chunk": torch.tensor(chunk)} for n in frames]


def pictures(grids: Sequence[tuple[int, int, int]], values: int) -> list[dict[str, Tensor]]:
    noise = torch.Generator().manual_seed(len(grids))
    return [
        {"pixels": torch.randn(t * h * w, values, generator=noise), "grid": torch.tensor([t, h, w])}
        for t, h, w in grids
    ]


def check(model: EncoderModel, items: Sequence[Mapping[str, Tensor]], expected: list[dict[str, Tensor]]) -> None:
    """As they are, padded as little as may be, and a lot."""
    least = model.padded_length(items)
    assert least is not None
    for lengths in ((), (least,), (least + 37,)):
        for outputs, wanted in zip(encode(model, items, lengths=lengths), expected, strict=True):
            assert outputs.keys() == wanted.keys()
            for name, tensor in wanted.items():
                assert outputs[name].shape == tensor.shape
                assert (outputs[name] - tensor).abs().max() < TOLERANCE * tensor.abs().max()


@pytest.mark.parametrize("frames", [(100,), (730, 100, 900), (1, 250, 801), (1650, 99)], ids=str)
def test_clips_are_as_transformers_encodes_them(audio: AudioEncoder, frames: tuple[int, ...]) -> None:
    """Among them ends of chunks and of attention windows."""
    tower = plain(audio.tower)
    chunk = 2 * tower.n_window
    items = clips(frames, tower.num_mel_bins, chunk)
    expected = []
    with torch.inference_mode():
        for item in items:
            # Behind a full chunk of its own, which makes the short ones' padding what it is here.
            longest = torch.zeros(tower.num_mel_bins, chunk)
            lengths = torch.tensor([chunk, item["features"].shape[1]])
            out = tower(torch.cat([longest, item["features"]], 1), lengths).last_hidden_state
            expected.append({"embeddings": out[audio.chunks.row(chunk) :]})
    check(audio, items, expected)


def test_short_clips_are_padded_to_their_chunk_and_no_further(audio: AudioEncoder) -> None:
    tower = plain(audio.tower)
    items = clips((30, 17), tower.num_mel_bins, 30)
    assert audio.padded_length(items) is None
    features = torch.cat([item["features"] for item in items], 1)
    with torch.inference_mode():
        expected = tower(features, torch.tensor([30, 17])).last_hidden_state.split([4, 3])
    for outputs, wanted in zip(encode(audio, items), expected, strict=True):
        assert (outputs["embeddings"] - wanted).abs().max() < TOLERANCE * wanted.abs().max()


@pytest.mark.parametrize("grids", [((1, 4, 4),), ((1, 2, 6), (3, 4, 2), (1, 8, 8), (2, 6, 4))], ids=str)
def test_pictures_are_as_transformers_encodes_them(
    vision: VisionEncoder, grids: tuple[tuple[int, int, int], ...]
) -> None:
    tower = plain(vision.tower)
    items = pictures(grids, tower.patch_embed.proj.weight[0].numel())
    expected = []
    with torch.inference_mode():
        for item in items:
            out = tower(item["pixels"], grid_thw=item["grid"][None])
            expected.append({"embeddings": out.pooler_output, "deepstack": torch.stack(list(out.deepstack_features))})
    assert expected[0]["deepstack"].shape[0] == 2
    check(vision, items, expected)


def test_a_padded_batch_is_laid_out_the_same_whatever_is_in_it(audio: AudioEncoder, vision: VisionEncoder) -> None:
    """Or a captured one could not stand for it."""
    values = vision.tower.patch_embed.proj.weight[0].numel()
    cases: list[tuple[EncoderModel, list[dict[str, Tensor]]]] = [
        (audio, clips((120, 30), audio.tower.num_mel_bins, 2 * audio.tower.n_window)),
        (vision, pictures(((1, 4, 4), (2, 2, 2)), values)),
    ]
    for model, items in cases:
        empty, full = model.plan((), 64), model.plan(items, 64)
        assert [(name, item.shape, item.dtype) for name, item in empty.inputs.items()] == [
            (name, item.shape, item.dtype) for name, item in full.inputs.items()
        ]
        assert empty.segments is full.segments is None
        assert empty.nbytes == full.nbytes
