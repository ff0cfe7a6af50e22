"""Frames of tiny talkers: the codes of all passes in one kernel are those of the layers, pass by pass."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from omni.checkpoint import Checkpoint
from omni.device import open_device
from omni.stage import StageContext
from omni_ar.kernels import frame_decoder, tuning
from omni_ar.kernels.frame_decoder import FrameSettings, kernel, settings
from omni_ar.kernels.frame_decoder.settings import OPERATION
from omni_ar.kernels.sampling.state import EVERYTHING
from omni_ar.layers import frame_kernel
from omni_ar.model import CodecModel
from omni_ar.sampling.sampler import DrawCodes
from omni_csm.backbone import build as build_backbone
from omni_csm.pipeline import pipeline as csm_pipeline
from omni_qwen3_omni.pipeline import pipeline as qwen3_pipeline
from omni_qwen3_omni.talker import build as build_talker
from tests.support.csm_reference import tiny_csm
from tests.support.reference import tiny_checkpoint
from tests.support.sampler_bench import state_of

pytestmark = pytest.mark.thorough

SETTINGS = {
    "qkv": 16, "out": 8, "gate_up": 8, "down": 8, "head": 16, "project": 8, "tile_d": 32, "slices": 2, "rows_left": True,
    "num_warps": 4,
}  # fmt: skip
ROWS: list[dict[str, Any]] = [
    {"temperature": 0.0, "code_temperature": 0.0},
    {"temperature": 1.0, "seed": 3, "code_top_k": 20, "code_top_p": 0.8},
]


def talker(folder: Path, pipeline: Any, build: Any, stage: str) -> CodecModel:
    checkpoint = Checkpoint(folder)
    made = pipeline(checkpoint).stage(stage)
    context = StageContext(
        stage=made,
        options=made.options,
        checkpoint=checkpoint,
        device=open_device("cpu"),
        dtype=torch.float32,
        load_format="auto",
    )
    model: CodecModel = build(context)
    return model


MODELS = {
    "Qwen3-Omni": lambda: talker(tiny_checkpoint(3), qwen3_pipeline, build_talker, "talker"),
    "CSM": lambda: talker(tiny_csm(), csm_pipeline, build_backbone, "backbone"),
}


@pytest.fixture
def tuned_for_every_shape(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a device whose table has settings for every shape."""
    keys = set[str]()

    def remembered(shape: Any, dtype: torch.dtype) -> str:
        made = frame_decoder.key(shape, dtype)
        keys.add(made)
        tuning.replace(OPERATION, made, {1: SETTINGS})
        return made

    monkeypatch.setattr(settings, "key", remembered)
    monkeypatch.setattr(frame_decoder, "runs_kernel", lambda tensor: True)
    yield
    for made in keys:
        tuning.replace(OPERATION, made, None)


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_codes_of_a_tiny_model(name: str, tuned_for_every_shape: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS[name]()
    generator = torch.Generator().manual_seed(1)
    hidden_RD = torch.randn(len(ROWS), model.shape.hidden_width, generator=generator)
    code0_R = torch.randint(40, (len(ROWS),), generator=generator)
    rows_R = torch.tensor([1, 0])
    draw = DrawCodes(state_of(model.shape.vocab_size, ROWS), rows_R, rows_R + 9, EVERYTHING)
    launched: list[FrameSettings] = []
    decode = kernel.decode_frames

    def counted(*arguments: Any, **options: Any) -> Any:
        launched.append(arguments[-1])
        return decode(*arguments, **options)

    monkeypatch.setattr(kernel, "decode_frames", counted)
    # A draw of another kind: the layers run pass by pass.
    expected = model.predict_codes(hidden_RD, code0_R, lambda logits_RV, group: draw(logits_RV, group))
    assert not launched
    got = model.predict_codes(hidden_RD, code0_R, draw)
    assert len(launched) == 1
    assert got.codes_RG.tolist() == expected.codes_RG.tolist()
    assert torch.equal(got.next_RD, expected.next_RD)
    assert len(set(got.codes_RG.flatten().tolist())) > 3


def test_a_table_is_made_again_where_weights_have_moved() -> None:
    model: Any = MODELS["Qwen3-Omni"]()
    layers, norm = model.code_predictor.model.layers, model.code_predictor.model.norm
    weights = frame_kernel.weights_of(layers, norm, [], [], None)
    assert weights is not None
    table = frame_decoder.AddressTable(weights)
    assert table.holds(weights)
    norm.weight = torch.nn.Parameter(norm.weight.clone())
    moved = frame_kernel.weights_of(layers, norm, [], [], None)
    assert moved is not None
    assert not table.holds(moved)


def test_weights_that_the_kernel_cannot_read_have_no_table() -> None:
    model: Any = MODELS["Qwen3-Omni"]()
    layers, norm = model.code_predictor.model.layers, model.code_predictor.model.norm
    strided = torch.zeros(8, 12)[:, ::2]
    assert frame_kernel.weights_of(layers, norm, [strided], [strided], None) is None
    assert frame_kernel.weights_of(layers, norm, [], [], torch.zeros(4, 4, dtype=torch.float64)) is None
    layers[1].self_attn.o_proj.bias = torch.nn.Parameter(torch.zeros(norm.weight.shape[0]))
    assert frame_kernel.weights_of(layers, norm, [], [], None) is None
