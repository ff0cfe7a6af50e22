"""The backbone's weights: tables that are published once, and none at all."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from omni.checkpoint import Checkpoint
from omni.device import open_device
from omni.stage import StageContext
from omni_csm.backbone import Backbone, build
from omni_csm.pipeline import pipeline
from tests.support.csm_reference import tiny_csm

ROWS = 5
DEPTH_TABLE = "depth_decoder.model.embed_tokens.weight"
BACKBONE_TABLE = "backbone_model.embed_tokens.embed_audio_tokens.weight"


def _context(folder: Path, load_format: str = "auto") -> StageContext:
    checkpoint = Checkpoint(folder)
    stage = pipeline(checkpoint).stage("backbone")
    return StageContext(
        stage=stage,
        options=stage.options,
        checkpoint=checkpoint,
        device=open_device("cpu"),
        dtype=torch.float32,
        load_format=load_format,
    )


def _greedy(logits_RV: Tensor, group: int) -> Tensor:
    return logits_RV.argmax(-1)


def _inputs(model: Backbone) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden_RD = torch.randn(ROWS, model.shape.hidden_width, generator=generator)
    return hidden_RD, torch.randint(model.shape.vocab_size, (ROWS,), generator=generator)


@pytest.mark.parametrize("kept", [DEPTH_TABLE, BACKBONE_TABLE])
def test_published_files_may_hold_the_table_of_frames_once(tmp_path: Path, kept: str) -> None:
    weights = load_file(tiny_csm() / "model.safetensors")
    table = weights[DEPTH_TABLE]  # newer versions of transformers write the table once
    rest = {name: weight for name, weight in weights.items() if name not in (DEPTH_TABLE, BACKBONE_TABLE)}
    models = []
    for tables in ({kept: table}, {DEPTH_TABLE: table, BACKBONE_TABLE: table.clone()}):
        folder = shutil.copytree(tiny_csm(), tmp_path / str(len(tables)))
        save_file(rest | tables, folder / "model.safetensors", metadata={"format": "pt"})
        models.append(build(_context(folder)))
    tied, apart = models
    assert tied.depth_decoder.embed_tokens is tied.embed_frame
    assert apart.depth_decoder.embed_tokens is not apart.embed_frame
    assert torch.equal(tied.embed_frame.weight, apart.depth_decoder.embed_tokens.weight)


@torch.inference_mode()
def test_dummy_weights_need_no_files(tmp_path: Path) -> None:
    shutil.copy(tiny_csm() / "config.json", tmp_path)
    model = build(_context(tmp_path, "dummy"))
    assert model.predict_codes(*_inputs(model), _greedy).codes_RG.shape == (ROWS, 4)
