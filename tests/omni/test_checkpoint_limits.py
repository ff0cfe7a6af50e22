"""Counts in config.json that no model has are refused before anything counts so far."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni.checkpoint import Checkpoint
from omni.checkpoint.limits import check_counts
from omni.engine import resolve_pipeline
from omni.errors import CheckpointError
from tests.support.csm_reference import tiny_csm
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import tiny_plugins
from tests.support.tiny_qwen2_5_omni import tiny_folder
from tests.support.tiny_text import write_text_model

ABSURD = 2**40


@pytest.mark.parametrize(
    ("name", "most"),
    [
        *((name, 1024) for name in ("num_hidden_layers", "encoder_layers", "num_layers", "depth", "n_layer")),
        *((name, 1024) for name in ("num_quantizers", "num_codebooks", "num_code_groups")),
        *((name, 2**22) for name in ("vocab_size", "text_vocab_size")),
        *((name, 2**24) for name in ("hidden_size", "intermediate_size", "head_dim", "num_attention_heads", "d_model")),
    ],
)
def test_a_count_is_bounded_wherever_it_stands(name: str, most: int) -> None:
    for config, field in (({name: most + 1}, name), ({"talker": {"text": {name: most + 1}}}, f"talker.text.{name}")):
        with pytest.raises(CheckpointError) as caught:
            check_counts(config)
        assert str(caught.value) == (
            f"config.json: {field}: is {most + 1:,}, above {most:,}; use the config.json that belongs to these weights"
        )
    check_counts({name: most, "talker": {"text": {name: most}}})


def test_what_counts_nothing_is_let_by() -> None:
    check_counts({"max_position_embeddings": ABSURD, "mlp_only_layers": [ABSURD], "num_hidden_layers": None})


def tiny_text() -> Path:
    folder = Path(tempfile.mkdtemp())
    write_text_model(folder, "moe")
    return folder


FIELDS: dict[Callable[[], Path], str] = {
    tiny_text: "num_hidden_layers",
    tiny_checkpoint: "talker_config.code_predictor_config.num_hidden_layers",
    tiny_folder: "token2wav_config.dit_config.enc_res2net_scale",
    tiny_csm: "codec_config.num_residual_layers",
}


@pytest.mark.parametrize(("made", "field"), FIELDS.items())
def test_every_family_refuses_it_at_the_start(tmp_path: Path, made: Callable[[], Path], field: str) -> None:
    config: Any = json.loads((made() / "config.json").read_text())
    *parents, name = field.split(".")
    inner = config
    for parent in parents:
        inner = inner[parent]
    assert name in inner
    inner[name] = ABSURD
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=rf"^config\.json: {field}: is .*, above"):
        resolve_pipeline(Checkpoint(tmp_path), tiny_plugins())
