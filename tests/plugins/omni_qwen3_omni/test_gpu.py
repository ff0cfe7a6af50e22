"""On a CUDA device, in float32: the CPU's tokens and codes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from omni.checkpoint import Checkpoint
from omni.device import open_device
from omni.frontend.base import Chat
from omni.payload import Payload
from omni.sampling_params import SamplingParams
from omni.stage import StageContext
from omni_encoder.model import EncoderModel
from omni_qwen3_omni import encoders
from omni_qwen3_omni.frontend import build as build_frontend
from omni_qwen3_omni.pipeline import pipeline
from support.omni_engine import OmniEngine
from support.reference import sizes, tiny_checkpoint
from support.reference_chats import chat, picture, says, sound
from support.reference_compare import TOLERANCE

pytestmark = pytest.mark.gpu

SHAPES: list[dict[str, Any]] = [
    sizes(seed=91, stop_gain=0.5, codec_stop_gain=0.5),
    sizes(
        seed=92, layers=4, heads=8, kv_heads=2, head_dim=24, experts=8, top_k=3, accept_hidden_layer=2, groups=8,
        deepstack=(0, 1, 2), stop_gain=0.5, codec_stop_gain=0.5, talker_experts=6, talker_top_k=3, predictor_layers=1,
        upsample_rates=(5, 4),
    ),
]  # fmt: skip
CHATS: list[Chat] = [
    chat(picture(64, 96, 1), sound(1.3, 1), "which is it", max_text=24, max_codes=50),
    chat("hello world", voice="aiden", max_text=16, max_codes=64),
    chat(
        says("system", "be kind"),
        says("user", sound(0.6, 2)),
        says("assistant", "one"),
        says("user", picture(64, 64, 2)),
        voice="chelsie",
        max_text=12,
        max_codes=30,
    ),
    chat(
        "hello",
        sound(0.8, 3),
        max_text=20,
        max_codes=40,
        thinker=SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=1),
        talker=SamplingParams(temperature=0.9, top_k=50, seed=2),
    ),
]


@pytest.fixture(autouse=True)
def full_float32() -> Iterator[None]:
    """Without TF32, which cuDNN's convolutions would use by default."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("shape", SHAPES, ids=["as written", "other sizes"])
@pytest.mark.parametrize("few_rows", [False, True], ids=["one batch", "few rows"])
def test_tokens_and_codes_are_the_cpu_s(shape: dict[str, Any], few_rows: bool) -> None:
    folder = tiny_checkpoint(**shape)
    overrides: dict[str, object] = {"thinker.max_num_seqs": 2, "talker.max_num_seqs": 2} if few_rows else {}
    arrivals = [0, 3, 5, 9] if few_rows else None
    on_cuda = OmniEngine(folder, overrides, "cuda").run(CHATS, arrivals)
    on_cpu = OmniEngine(folder, overrides, "cpu").run(CHATS, arrivals)

    for cuda, cpu in zip(on_cuda, on_cpu, strict=True):
        assert cuda.error is None, cuda.error
        assert cuda.ids == cpu.ids
        assert cuda.frames == cpu.frames
        assert len(cpu.frames) > 10
        assert cuda.reasons == cpu.reasons
        assert cuda.wave.shape == cpu.wave.shape
        assert np.abs(cuda.wave - cpu.wave).max() < TOLERANCE * np.abs(cpu.wave).max()


@pytest.mark.parametrize("chunks", [(1, 1), (2, 9)], ids=str)
def test_samples_do_not_depend_on_the_chunks(chunks: tuple[int, int]) -> None:
    folder = tiny_checkpoint(**SHAPES[0])
    first, later = chunks
    settings: dict[str, object] = {"code2wav.first_chunk_frames": first, "code2wav.chunk_frames": later}

    cut = OmniEngine(folder, settings, "cuda").answer(CHATS[1])
    shipped = OmniEngine(folder, {}, "cuda").answer(CHATS[1])

    assert cut.frames == shipped.frames
    assert np.abs(cut.wave - shipped.wave).max() < TOLERANCE * np.abs(shipped.wave).max()


@pytest.mark.parametrize("stage", ["audio_encoder", "vision_encoder"])
def test_media_embeddings_are_the_cpu_s(stage: str) -> None:
    folder = tiny_checkpoint(**SHAPES[1])
    asked = chat(*[sound(s, i) for i, s in enumerate((1.1, 2.7))], *[picture(64, 96, 5), picture(320, 64, 6)])
    payloads = build_frontend(Checkpoint(folder)).prepare(asked).inputs[stage]
    assert len(payloads) == 2

    on_cuda, on_cpu = (_encoded(folder, stage, device, payloads) for device in ("cuda", "cpu"))

    for cuda, cpu in zip(on_cuda, on_cpu, strict=True):
        assert cuda.keys() == cpu.keys()
        for name, expected in cpu.items():
            assert (cuda[name].cpu() - expected).abs().max() < 1e-4 * expected.abs().max()


def _encoded(folder: Any, stage: str, device: str, payloads: Any) -> Any:
    checkpoint = Checkpoint(folder)
    target = open_device(device)
    node = pipeline(checkpoint).stage(stage)
    context = StageContext(node, node.options, checkpoint, target, torch.float32, "auto")
    build = encoders.build_audio if stage == "audio_encoder" else encoders.build_vision
    model: EncoderModel = build(context)
    items = [
        {name: t if name in model.host_inputs else t.to(target.torch_device) for name, t in _tensors(p).items()}
        for p in payloads
    ]
    with torch.inference_mode():
        return model.encode(items)


def _tensors(payload: Payload) -> dict[str, torch.Tensor]:
    tensors = {name: t for name, t in payload.tensors.items() if isinstance(t, torch.Tensor)}
    assert len(tensors) == len(payload.tensors)
    return tensors


def test_tokens_and_codes_are_the_cpu_s_under_pressure() -> None:
    """Too few blocks, seven tokens a step, one row at the vocoder; the second time from the prefix cache."""
    folder = tiny_checkpoint(**SHAPES[0])
    expected = OmniEngine(folder, {}, "cpu").run(CHATS)
    pressure: dict[str, object] = {"code2wav.max_num_seqs": 1}
    for stage in ("thinker", "talker"):
        pressure |= {f"{stage}.num_blocks": 36, f"{stage}.block_size": 4, f"{stage}.max_num_batched_tokens": 7}
    omni = OmniEngine(folder, pressure, "cuda")
    for again in (False, True):
        before = omni.engine.counters()
        for cuda, cpu in zip(omni.run(CHATS), expected, strict=True):
            assert cuda.error is None, cuda.error
            assert cuda.ids == cpu.ids
            assert cuda.frames == cpu.frames
        after = omni.engine.counters()
        for stage in ("thinker", "talker"):
            assert not again or after[stage]["cached_tokens"] > before[stage]["cached_tokens"]
    assert omni.engine.counters()["thinker"]["preemptions"]
    assert omni.engine.counters()["talker"]["preemptions"]
    assert omni.engine.counters()["talker"]["spilled_rows"]
