"""The towers' batches, padded and not, against transformers' own forward pass on each item alone; and on a CUDA device."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen2_5OmniConfig, Qwen3OmniMoeConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioEncoder, Qwen2_5OmniVisionEncoder
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoder,
    Qwen3OmniMoeVisionEncoder,
)

from omni.checkpoint import Checkpoint
from omni.device import SyncCheck, SyncPoint, may_sync, open_device, sync_guard
from omni.frontend.base import AudioPart, ImagePart
from omni.pipeline import Pipeline
from omni.stage import StageContext
from omni_encoder.model import EncoderModel
from omni_qwen2_5_omni import encoders as encoders_2_5
from omni_qwen2_5_omni.pipeline import pipeline as pipeline_2_5
from omni_qwen3_omni import encoders as encoders_3
from omni_qwen3_omni.frontend import build as build_frontend
from omni_qwen3_omni.pipeline import pipeline as pipeline_3
from tests.support.omni_engine import SHAPES
from tests.support.reference import chat, picture, sizes, sound, tiny_checkpoint
from tests.support.tiny_qwen2_5_omni import tiny_folder
from tests.support.tower import encode

Items = Sequence[Mapping[str, Tensor]]
TOLERANCE = 1e-5
STAGES = ("audio_encoder", "vision_encoder")


BUILT: dict[str, tuple[Callable[[StageContext], EncoderModel], Callable[[Checkpoint], Pipeline]]] = {
    "audio_3": (encoders_3.build_audio, pipeline_3),
    "vision_3": (encoders_3.build_vision, pipeline_3),
    "audio_2_5": (encoders_2_5.build_audio, pipeline_2_5),
    "vision_2_5": (encoders_2_5.build_vision, pipeline_2_5),
}


def built(name: str, folder: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Any:
    """As an engine would build the stage. name: of `BUILT`."""
    build, pipeline = BUILT[name]
    checkpoint = Checkpoint(folder)
    stage = pipeline(checkpoint).stage("audio_encoder" if "audio" in name else "vision_encoder")
    return build(
        StageContext(
            stage=stage,
            options=stage.options,
            checkpoint=checkpoint,
            device=open_device(device),
            dtype=dtype,
            load_format="auto",
        )
    )


@cache
def encoder(name: str) -> Any:
    """Of a tiny checkpoint, on the CPU."""
    return built(name, folder_of(name))


def folder_of(name: str) -> Path:
    return tiny_folder() if "2_5" in name else tiny_checkpoint(**sizes(seed=81, deepstack=(0, 1)))


THEIRS: dict[str, tuple[Any, Any, str]] = {
    "audio_3": (Qwen3OmniMoeConfig, Qwen3OmniMoeAudioEncoder, "audio_config"),
    "vision_3": (Qwen3OmniMoeConfig, Qwen3OmniMoeVisionEncoder, "vision_config"),
    "audio_2_5": (Qwen2_5OmniConfig, Qwen2_5OmniAudioEncoder, "audio_config"),
    "vision_2_5": (Qwen2_5OmniConfig, Qwen2_5OmniVisionEncoder, "vision_config"),
}
"""transformers' config, its class of a tower, and the tower's part of the config."""


def plain(name: str) -> Any:
    """The tower of `encoder(name)` as transformers has and runs it."""
    config, tower, part = THEIRS[name]
    whole = config.from_pretrained(folder_of(name))
    theirs = tower._from_config(getattr(whole.thinker_config, part), dtype=torch.float32).eval()
    theirs.load_state_dict(encoder(name).state_dict())
    return theirs


def clips(frames: Sequence[int], bins: int = 128, **others: Tensor) -> list[dict[str, Tensor]]:
    noise = torch.Generator().manual_seed(len(frames))
    return [{"features": torch.randn(bins, count, generator=noise), **others} for count in frames]


def pictures(grids: Sequence[tuple[int, int, int]], values: int) -> list[dict[str, Tensor]]:
    noise = torch.Generator().manual_seed(len(grids))
    return [
        {"pixels": torch.randn(t * h * w, values, generator=noise), "grid": torch.tensor([t, h, w])}
        for t, h, w in grids
    ]


def assert_near(made: Sequence[Mapping[str, Any]], expected: Items, tolerance: float = TOLERANCE) -> None:
    for outputs, wanted in zip(made, expected, strict=True):
        assert outputs.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert outputs[name].shape == tensor.shape
            assert (outputs[name].cpu().float() - tensor).abs().max() < tolerance * tensor.abs().max()


def check(model: EncoderModel, items: Items, expected: Items) -> None:
    """As they are, padded as little as may be, and a lot."""
    least = model.padded_length(items)
    assert least is not None
    for lengths in ((), (least,), (least + 37,), (least + 170,)):
        assert_near(encode(model, items, lengths=lengths), expected)


@torch.inference_mode()
@pytest.mark.parametrize("frames", [(100,), (730, 100, 900), (1, 250, 801), (1650, 99)], ids=str)
def test_clips_of_qwen3_omni(frames: tuple[int, ...]) -> None:
    """Among them ends of chunks and of attention windows."""
    audio_3 = encoder("audio_3")
    tower = plain("audio_3")
    chunk = 2 * tower.n_window
    items = clips(frames, tower.num_mel_bins, chunk=torch.tensor(chunk))
    expected = []
    for item in items:
        # Behind a full chunk of its own, which makes the short ones' padding what it is here.
        longest = torch.zeros(tower.num_mel_bins, chunk)
        lengths = torch.tensor([chunk, item["features"].shape[1]])
        out = tower(torch.cat([longest, item["features"]], 1), lengths).last_hidden_state
        expected.append({"embeddings": out[audio_3.chunks.chunk_tokens(chunk) :]})
    check(audio_3, items, expected)


@torch.inference_mode()
def test_short_clips_are_padded_to_their_chunk_and_no_further() -> None:
    audio_3 = encoder("audio_3")
    tower = plain("audio_3")
    items = clips((30, 17), tower.num_mel_bins, chunk=torch.tensor(30))
    assert audio_3.padded_length(items) is None
    features = torch.cat([item["features"] for item in items], 1)
    expected = tower(features, torch.tensor([30, 17])).last_hidden_state.split([4, 3])
    assert_near(encode(audio_3, items), [{"embeddings": embeddings} for embeddings in expected])


@torch.inference_mode()
@pytest.mark.parametrize("frames", [(200,), (437, 3, 600), (81, 250), (3, 4, 5), (199, 201)], ids=str)
def test_clips_of_qwen2_5_omni(frames: tuple[int, ...]) -> None:
    """Among them ends of chunks and odd lengths, whose last token has no partner."""
    items, tower = clips(frames), plain("audio_2_5")
    expected = [
        tower(item["features"], feature_lens=torch.tensor([count])).last_hidden_state
        for item, count in zip(items, frames, strict=True)
    ]
    assert [len(wanted) for wanted in expected] == [encoders_2_5.embedded_frames(count) for count in frames]
    check(encoder("audio_2_5"), items, [{"embeddings": embeddings} for embeddings in expected])


@torch.inference_mode()
@pytest.mark.parametrize(
    ("name", "grids"),
    [
        *(("vision_3", grids) for grids in (((1, 4, 4),), ((1, 2, 6), (3, 4, 2), (1, 8, 8), (2, 6, 4)))),
        *(("vision_2_5", ((1, 4, 6),)), ("vision_2_5", ((1, 16, 8), (1, 2, 2), (1, 18, 10)))),
        ("vision_2_5", ((2, 10, 12), (1, 8, 8))),
    ],
    ids=str,
)
def test_pictures_in_batches_equal_each_alone(name: str, grids: tuple[tuple[int, int, int], ...]) -> None:
    """Among them whole windows, and such as are cut at the edges; pictures of several frames, too."""
    tower = plain(name)
    items, expected = pictures(grids, tower.patch_embed.proj.weight[0].numel()), []
    for item in items:
        out = tower(item["pixels"], grid_thw=item["grid"][None])
        expected.append({"embeddings": out.pooler_output})
        if name == "vision_3":
            expected[-1]["deepstack"] = torch.stack(list(out.deepstack_features))
            assert len(expected[-1]["deepstack"]) == 2
    check(encoder(name), items, expected)


@torch.inference_mode()
def test_planted_fault_windows_are_not_frames() -> None:
    """The tiny tower's windows matter: with windows as large as frames, its outputs differ."""
    (item,) = pictures([(1, 16, 12)], 3 * 2 * 14 * 14)
    tower = plain("vision_2_5")
    narrow = tower(item["pixels"], grid_thw=item["grid"][None]).pooler_output
    tower.window_size *= 8
    wide = tower(item["pixels"], grid_thw=item["grid"][None]).pooler_output
    assert (wide - narrow).abs().max() > 100 * TOLERANCE * narrow.abs().max()


def test_a_padded_batch_has_the_same_layout_with_any_contents() -> None:
    """Or a captured one could not stand for it."""
    audio_3, vision_3 = encoder("audio_3"), encoder("vision_3")
    chunk = torch.tensor(audio_3.chunks.frames)
    values = vision_3.patches.values
    cases: list[tuple[EncoderModel, Items]] = [
        (audio_3, clips((120, 30), audio_3.bins, chunk=chunk)),
        (vision_3, pictures(((1, 4, 4), (2, 2, 2)), values)),
    ]
    for model, items in cases:
        empty, full = model.plan((), 64), model.plan(items, 64)
        assert [(name, item.shape, item.dtype) for name, item in empty.inputs.items()] == [
            (name, item.shape, item.dtype) for name, item in full.inputs.items()
        ]
        assert empty.segments is full.segments is None
        assert empty.nbytes == full.nbytes


@pytest.mark.parametrize("length", [1, 7, 50, 51, 130])
def test_largest_items_fit(length: int) -> None:
    for model in (encoder("audio_2_5"), encoder("vision_2_5")):
        item = model.largest_item(length)
        assert item.length <= length
        (outputs,) = encode(model, [item.features])
        assert len(outputs["embeddings"]) == item.length


def rounded(name: str, device: str = "cpu") -> tuple[EncoderModel, Items]:
    """A tower in bfloat16, and a batch for it."""
    model = built(name, folder_of(name), device, torch.bfloat16)
    if "vision" in name:
        return model, pictures(((1, 16, 8), (1, 2, 2), (1, 18, 10)), model.patches.values)
    return model, clips((437, 3, 600), model.bins, chunk=torch.tensor(model.chunks.frames))


def exact_outputs(model: EncoderModel, exact: EncoderModel, items: Items) -> list[Mapping[str, Tensor]]:
    """In float64, with the weights of `model`. exact: as `model`, on the CPU in any dtype."""
    exact.load_state_dict(model.state_dict())
    return encode(exact.double(), items)


def distance(made: Sequence[Mapping[str, Tensor]], exact: Sequence[Mapping[str, Tensor]]) -> float:
    """The norm of all differences, relative to the norm of `exact`."""
    ours, theirs = (torch.cat([t.double().cpu().flatten() for o in out for t in o.values()]) for out in (made, exact))
    return float((ours - theirs).norm() / theirs.norm())


def equal(made: Sequence[Mapping[str, Tensor]], others: Sequence[Mapping[str, Tensor]]) -> bool:
    """To the bit."""
    return all(torch.equal(own[name], other[name]) for own, other in zip(made, others, strict=True) for name in own)


@torch.inference_mode()
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", BUILT)
def test_captured_batches_equal_others_in_bfloat16_to_the_bit(name: str, device: str) -> None:
    model, items = rounded(name, device)
    least = model.padded_length(items)
    assert least is not None
    for lengths in ((least,), (least + 61,), (least + 170, 10)):
        captured, other = (encode(model, items, open_device(device), lengths, captured=on) for on in (True, False))
        assert equal(captured, other)


@torch.inference_mode()
@pytest.mark.parametrize("name", BUILT)
def test_padded_batches_are_as_near_to_float64_as_others(name: str) -> None:
    """They differ in bfloat16, as attention of another shape adds up keys in another order."""
    model, items = rounded(name)
    exact = exact_outputs(model, built(name, folder_of(name)), items)
    least = model.padded_length(items)
    assert least is not None
    plain, padded = encode(model, items), encode(model, items, lengths=(least + 61,))
    assert not equal(plain, padded)
    assert distance(padded, exact) < 1.1 * distance(plain, exact)


MEDIA: list[AudioPart | ImagePart] = [
    *(sound(seconds, i) for i, seconds in enumerate((1.1, 2.7, 9.3))),
    picture(64, 96, 5),
    picture(320, 64, 6),
]


@pytest.mark.gpu
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("lengths", [(), (256,), (333,)], ids=["uncaptured", "captured", "captured far larger"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_media_embeddings_on_cuda_are_the_cpu_s(stage: str, lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    """And the host does not wait for the device. In bfloat16 both round as often, so both are as far from float64."""
    folder = tiny_checkpoint(**SHAPES["other sizes"])
    payloads = build_frontend(Checkpoint(folder)).prepare(chat(*MEDIA)).inputs[stage]
    items = [{name: t for name, t in payload.tensors.items() if isinstance(t, Tensor)} for payload in payloads]
    assert len(items) >= 2
    name = "audio_3" if stage == "audio_encoder" else "vision_3"
    device, model = open_device("cuda"), built(name, folder, "cuda", dtype)
    with may_sync(SyncPoint.LOAD):
        device.synchronize()
    with sync_guard(device, SyncCheck.ERROR):
        on_cuda = encode(model, items, device, lengths)
    on_cpu = encode(built(name, folder, dtype=dtype), items)
    if dtype == torch.float32:
        assert_near(on_cuda, [{name: torch.as_tensor(t) for name, t in one.items()} for one in on_cpu], 1e-4)
    else:
        exact = exact_outputs(model, built(name, folder), items)
        assert distance(on_cuda, exact) < 1.5 * distance(on_cpu, exact)
