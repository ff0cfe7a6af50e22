"""The text family's graph, its settings, and its refusals."""

import json
from pathlib import Path

import pytest

from omni.checkpoint import Checkpoint
from omni.errors import CheckpointError
from omni.pipeline import validate
from omni_ar.options import ArOptions
from omni_text.pipeline import pipeline
from tests.support.tiny_text import TextEngine, write_text_model


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_text_model(tmp_path, "tied")
    return tmp_path


def test_the_graph_is_one_stage_whose_output_is_text(folder: Path):
    graph = pipeline(Checkpoint(folder))
    validate(graph)
    assert [stage.name for stage in graph.stages] == ["text"]
    assert [(output.modality, output.stage) for output in graph.outputs] == [("text", "text")]


def test_the_checkpoint_s_generation_settings_are_the_stage_s_defaults(folder: Path):
    settings = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "eos_token_id": [5, 7]}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    options = pipeline(Checkpoint(folder)).stage("text").options
    assert isinstance(options, ArOptions)
    sampling = options.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.6, 20, 0.9)
    assert sampling.stop_token_ids == (5, 7)


def test_without_generation_settings_the_config_s_end_id_counts(folder: Path):
    (folder / "generation_config.json").unlink()
    change_config(folder, eos_token_id=9)
    options = pipeline(Checkpoint(folder)).stage("text").options
    assert isinstance(options, ArOptions)
    assert options.sampling.stop_token_ids == (9,)
    assert options.sampling.temperature == 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "layer_types.1"),
        (
            {"use_sliding_window": True, "sliding_window": 0, "layer_types": ["sliding_attention"] * 3},
            "sliding_window: is 0",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
            "rope_parameters.rope_type",
        ),
    ],
)
def test_unsupported_config_is_refused_before_any_weight_is_read(folder: Path, changes: dict[str, object], field: str):
    change_config(folder, **changes)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=field):
        TextEngine(folder)
