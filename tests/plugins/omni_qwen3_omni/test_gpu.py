"""On a CUDA device, in float32: what encoders and vocoder make is what the CPU makes."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from omni.checkpoint import Checkpoint
from omni.device import open_device
from omni.stage import StageContext
from omni_encoder.model import EncoderModel
from omni_encoder.plan import EncodePlan
from omni_qwen3_omni import encoders
from omni_qwen3_omni.frontend import build as build_frontend
from omni_qwen3_omni.pipeline import pipeline
from tests.support.omni_engine import CHATS, SHAPES, TOLERANCE, OmniEngine
from tests.support.reference import chat, picture, sound, tiny_checkpoint

pytestmark = pytest.mark.gpu

Item = Mapping[str, Tensor]


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("chunks", [(1, 1), (2, 9)], ids=str)
def test_samples_do_not_depend_on_the_chunks(chunks: tuple[int, int], graphs: bool) -> None:
    folder = tiny_checkpoint(**SHAPES["as written"])
    first, later = chunks
    settings: dict[str, object] = {"code2wav.first_chunk_frames": first, "code2wav.chunk_frames": later}

    cut = OmniEngine(folder, settings, "cuda", graphs=graphs).answer(CHATS[1])
    shipped = OmniEngine(folder, {}, "cuda", graphs=graphs).answer(CHATS[1])

    assert cut.frames == shipped.frames
    assert np.abs(cut.wave - shipped.wave).max() < TOLERANCE * np.abs(shipped.wave).max()


@pytest.mark.parametrize("stage", ["audio_encoder", "vision_encoder"])
def test_media_embeddings_are_the_cpu_s(stage: str) -> None:
    folder = tiny_checkpoint(**SHAPES["other sizes"])
    asked = chat(*[sound(s, i) for i, s in enumerate((1.1, 2.7))], *[picture(64, 96, 5), picture(320, 64, 6)])
    payloads = build_frontend(Checkpoint(folder)).prepare(asked).inputs[stage]
    items = [{name: t for name, t in p.tensors.items() if isinstance(t, Tensor)} for p in payloads]
    assert len(items) == 2

    on_cuda, on_cpu = (encoded(folder, stage, device, items) for device in ("cuda", "cpu"))

    for cuda, cpu in zip(on_cuda, on_cpu, strict=True):
        assert cuda.keys() == cpu.keys()
        for name, expected in cpu.items():
            assert (cuda[name].cpu() - expected).abs().max() < 1e-4 * expected.abs().max()


def encoded(folder: Path, stage: str, device: str, items: list[Item]) -> list[Item]:
    """What each of the items of one batch becomes."""
    checkpoint, target = Checkpoint(folder), open_device(device)
    node = pipeline(checkpoint).stage(stage)
    context = StageContext(node, node.options, checkpoint, target, torch.float32, "auto")
    build = encoders.build_audio if stage == "audio_encoder" else encoders.build_vision
    with torch.inference_mode():
        model: EncoderModel = build(context)
        plan = model.plan(items)
        outputs = model.encode(plan.views(filled(plan).to(target.torch_device)), plan.segments)
    ends = np.cumsum(plan.sizes).tolist()
    places = [slice(end - size, end) for end, size in zip(ends, plan.sizes, strict=True)]
    return [model.item_outputs(outputs, place) for place in places]


def filled(plan: EncodePlan) -> Tensor:
    """The buffer of a plan's inputs, on the host."""
    buffer = torch.zeros(plan.nbytes, dtype=torch.uint8)
    for _, start, item in plan.placed():
        if item.parts:
            whole = torch.cat([torch.as_tensor(part).reshape(-1).view(torch.uint8) for part in item.parts])
            buffer[start : start + whole.numel()] = whole
    return buffer
