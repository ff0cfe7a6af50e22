"""The towers on a CUDA device, captured and not: what the CPU gives, and nothing waits for the device."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from omni.checkpoint import Checkpoint
from omni.device import SyncCheck, SyncPoint, may_sync, open_device, sync_guard
from omni.payload import Payload
from omni.stage import StageContext
from omni_encoder.cache import Outputs
from omni_qwen3_omni.encoders import build_audio, build_vision
from omni_qwen3_omni.frontend import build as build_frontend
from omni_qwen3_omni.pipeline import pipeline
from tests.support.omni_engine import SHAPES
from tests.support.reference import chat, picture, sound, tiny_checkpoint
from tests.support.tower import encode

pytestmark = pytest.mark.gpu

MEDIA = [*(sound(seconds, i) for i, seconds in enumerate((1.1, 2.7, 9.3))), picture(64, 96, 5), picture(320, 64, 6)]


@pytest.mark.parametrize("stage", ["audio_encoder", "vision_encoder"])
@pytest.mark.parametrize("lengths", [(), (256,), (333,)], ids=["uncaptured", "captured", "captured far larger"])
# These small towers are lively: bfloat16 is off by up to 0.04 on the CPU too.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.08)], ids=["fp32", "bf16"])
def test_media_embeddings_are_the_cpu_s(
    stage: str, lengths: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    folder = tiny_checkpoint(**SHAPES["other sizes"])
    payloads = build_frontend(Checkpoint(folder)).prepare(chat(*MEDIA)).inputs[stage]

    on_cuda = encoded(folder, stage, "cuda", payloads, dtype, lengths)
    on_cpu = encoded(folder, stage, "cpu", payloads, torch.float32, ())

    assert len(on_cpu) >= 2
    for cuda, cpu in zip(on_cuda, on_cpu, strict=True):
        assert cuda.keys() == cpu.keys()
        for name, expected in cpu.items():
            assert (cuda[name].cpu().float() - expected).abs().max() < tolerance * expected.abs().max()


def encoded(
    folder: Any, stage: str, name: str, payloads: Sequence[Payload], dtype: torch.dtype, lengths: tuple[int, ...]
) -> list[Outputs]:
    """One batch. lengths: captured."""
    checkpoint, device = Checkpoint(folder), open_device(name)
    node = pipeline(checkpoint).stage(stage)
    context = StageContext(node, node.options, checkpoint, device, dtype, "auto")
    model = build_audio(context) if stage == "audio_encoder" else build_vision(context)
    with may_sync(SyncPoint.LOAD):
        device.synchronize()
    with sync_guard(device, SyncCheck.ERROR):
        return encode(model, [tensors(payload) for payload in payloads], device, lengths)


def tensors(payload: Payload) -> dict[str, torch.Tensor]:
    found = {name: tensor for name, tensor in payload.tensors.items() if isinstance(tensor, torch.Tensor)}
    assert len(found) == len(payload.tensors)
    return found
