"""The family's graph, as the framework finds and checks it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2_5OmniForConditionalGeneration

from omni.checkpoint import Checkpoint
from omni.engine import resolve_pipeline
from omni.errors import CheckpointError
from omni.utils.quiet import quiet
from omni_ar.options import ArOptions
from omni_qwen2_5_omni.thinker import build as build_thinker
from tests.support.tiers import SLOW, few
from tests.support.tiny_omni import tiny_plugins
from tests.support.tiny_qwen2_5_omni import stage_context, tiny_folder


@pytest.mark.parametrize("talker", [True, False])
def test_stages_are_those_of_the_checkpoint(talker: bool) -> None:
    pipeline = resolve_pipeline(Checkpoint(tiny_folder(talker=talker)), tiny_plugins()).pipeline
    names = ["audio_encoder", "vision_encoder", "thinker", *["talker", "token2wav"][: 2 * talker]]
    assert [stage.name for stage in pipeline.stages] == names
    assert [output.modality for output in pipeline.outputs] == ["text", "audio", "codes"][: 1 + 2 * talker]


@pytest.mark.parametrize(("talker", "emits"), [(True, (64, True, ("audio", "image"))), (False, (0, False, ()))])
def test_the_thinker_emits_hidden_states_for_a_talker_alone(talker: bool, emits: object) -> None:
    shape = build_thinker(stage_context(tiny_folder(talker=talker), "thinker")).shape
    assert (shape.payload_width, shape.emits_tokens, shape.forward_embeddings) == emits


def test_ends_and_codes_without_sound() -> None:
    pipeline = resolve_pipeline(Checkpoint(tiny_folder()), tiny_plugins()).pipeline
    thinker, talker = (pipeline.stage(name).options for name in ("thinker", "talker"))
    assert isinstance(thinker, ArOptions)
    assert isinstance(talker, ArOptions)
    assert (
        list(thinker.sampling.stop_token_ids or ()) == Checkpoint(tiny_folder()).generation_config["eos_token_id"][:1]
    )
    # Codes 0 to 40 have a sound, of which 40 is one that ends; 41 begins, 42 ends, 43 and 44 mean nothing here.
    assert set(talker.sampling.stop_token_ids or ()) == {40, 42}
    assert set(talker.sampling.suppress_token_ids or ()) == {41, 43, 44}


def with_ends(folder: Path, thinker: object, text: object, generation: object) -> Path:
    """The tiny checkpoint with end ids in these places; None is none there."""
    shutil.copytree(tiny_folder(), folder)

    def put(file: str, *path: str, end: object) -> None:
        table: dict[str, Any] = json.loads((folder / file).read_text())
        inner = table
        for name in path:
            inner = inner[name]
        inner.pop("eos_token_id", None)
        if end is not None:
            inner["eos_token_id"] = end
        (folder / file).write_text(json.dumps(table))

    put("config.json", "thinker_config", end=thinker)
    put("config.json", "thinker_config", "text_config", end=text)
    put("generation_config.json", end=generation)
    return folder


def ends(folder: Path) -> list[int]:
    thinker = resolve_pipeline(Checkpoint(folder), tiny_plugins()).pipeline.stage("thinker").options
    assert isinstance(thinker, ArOptions)
    return list(thinker.sampling.stop_token_ids or ())


@pytest.mark.parametrize(("thinker", "text"), [(7, None), ([7, 8], None), (None, 9), (None, [9, 10]), (7, 9)])
@pytest.mark.parametrize("generation", few(1, [11, None], SLOW))
def test_the_end_is_that_of_transformers_thinker(
    thinker: object, text: object, generation: object, tmp_path: Path
) -> None:
    folder = with_ends(tmp_path / "ends", thinker, text, generation)
    with quiet():
        config = Qwen2_5OmniForConditionalGeneration.from_pretrained(folder).thinker.generation_config
    assert ends(folder) == ([config.eos_token_id] if isinstance(config.eos_token_id, int) else config.eos_token_id)


def test_without_an_end_of_the_thinker_the_file_s_counts(tmp_path: Path) -> None:
    assert ends(with_ends(tmp_path / "ends", None, None, [11, 12])) == [11, 12]


@pytest.mark.parametrize(
    ("thinker", "text", "message"),
    [
        ("seven", None, r"thinker_config\.eos_token_id: Expected `int \| array \| null`"),
        (None, 10**6, r"thinker_config\.text_config\.eos_token_id: 1000000 is not in the vocabulary"),
        (None, None, r"thinker_config\.eos_token_id: 151645 is not in the vocabulary"),
    ],
)
def test_a_wrong_end_is_named_where_it_stands(thinker: object, text: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"^config\.json: {message}"):
        ends(with_ends(tmp_path / "ends", thinker, text, None))
