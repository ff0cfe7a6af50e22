"""How long answers are at most where a request leaves it open: of speaking families as their `generate` in transformers has it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from omni.checkpoint import Checkpoint
from omni.pipeline import Pipeline
from omni_ar.options import ArOptions
from omni_csm.pipeline import pipeline as csm
from omni_qwen2_5_omni.pipeline import pipeline as qwen2_5_omni
from omni_qwen3_omni.pipeline import pipeline as qwen3_omni
from tests.support.csm_reference import tiny_csm
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_qwen2_5_omni import tiny_folder


@pytest.mark.parametrize(
    ("made", "pipeline", "stage", "most"),
    [
        (tiny_checkpoint, qwen3_omni, "thinker", 1024),
        (tiny_folder, qwen2_5_omni, "thinker", 1024),
        (tiny_csm, csm, "backbone", 7),
    ],
)
def test_answers_are_as_long_as_published_ones(
    tmp_path: Path, made: Callable[[], Path], pipeline: Callable[[Checkpoint], Pipeline], stage: str, most: int
) -> None:
    shutil.copy(made() / "config.json", tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"max_new_tokens": 7, "min_p": 0.1, "do_sample": True}))
    options = pipeline(Checkpoint(tmp_path)).stage(stage).options
    assert isinstance(options, ArOptions)
    assert (options.sampling.max_tokens, options.sampling.min_p) == (most, 0.1)
