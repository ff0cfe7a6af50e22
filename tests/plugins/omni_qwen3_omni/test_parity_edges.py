"""Checkpoints at the edges of the published layout."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from support.omni_engine import OmniEngine, assert_same
from support.reference import Reference, chat, picture, reference_of, says, sound, tiny_checkpoint

SEEN_AND_HEARD = chat(says("user", picture(64, 96, 1), sound(0.6, 1), "which one"))


def test_a_vision_tower_without_deepstack_levels() -> None:
    folder = tiny_checkpoint(131, deepstack=(), stop_gain=0.0, codec_stop_gain=0.0)
    (result,) = OmniEngine(folder).run([SEEN_AND_HEARD])
    assert_same(result, reference_of(folder).answer(SEEN_AND_HEARD))


@pytest.mark.parametrize("holds_output", [False, True])
def test_a_thinker_whose_output_is_its_embedding(holds_output: bool, tmp_path: Path) -> None:
    """holds_output: the file has an output matrix of its own, which counts."""
    untied = tiny_checkpoint(132, stop_gain=0.0, codec_stop_gain=0.0)
    folder = tmp_path / "tied"
    shutil.copytree(untied, folder)
    config = json.loads((folder / "config.json").read_text())
    config["thinker_config"]["tie_word_embeddings"] = True
    (folder / "config.json").write_text(json.dumps(config))
    if not holds_output:
        _drop(folder, "thinker.lm_head.weight")
    asked = chat("hello world, what is it")
    (result,) = OmniEngine(folder).run([asked])
    assert_same(result, Reference(folder).answer(asked))
    (before,) = OmniEngine(untied).run([asked])
    assert (result.ids == before.ids) == holds_output


def _drop(folder: Path, name: str) -> None:
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    file = folder / listed["weight_map"].pop(name)
    index.write_text(json.dumps(listed))
    weights = load_file(file)
    del weights[name]
    save_file(weights, file, {"format": "pt"})
