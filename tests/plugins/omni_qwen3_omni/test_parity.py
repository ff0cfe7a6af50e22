"""Parity with transformers: text tokens and codes of every group are equal, waveforms within 1e-4 of their peak."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from omni.device import SyncCheck, open_device, sync_guard
from omni.testing.launch_guard import LaunchGuard
from tests.plugins.omni_qwen3_omni.parity_cases import VOICES
from tests.support.omni_engine import OmniEngine, assert_parity
from tests.support.reference import chat, picture, says, sound, tiny_checkpoint
from tests.support.tiers import SLOW, few


@pytest.fixture(scope="module")
def engine() -> OmniEngine:
    """Its models never stop by themselves, so that every case has its full length."""
    return OmniEngine(tiny_checkpoint(stop_gain=0.0, codec_stop_gain=0.0, voices=VOICES))


def test_text_comes_before_the_speech_is_over(engine: OmniEngine) -> None:
    """The talker starts while the thinker still writes."""
    log = engine.answer(chat("tell me more", max_text=40, max_codes=40)).log

    assert log.index("codes") < log.index("thinker")
    assert log.index("audio") < log.index("thinker")


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_requests_run_in_phases_and_wait_for_nothing_unlisted(name: str) -> None:
    device = open_device(name)
    engine = OmniEngine(tiny_checkpoint(), {"talker.max_num_seqs": 1}, device)
    chats = [
        chat("what is it", picture(64, 64), sound(0.6), max_text=8, max_codes=30),
        chat("hello", max_text=8, max_codes=12, voice="aiden"),
        chat(picture(64, 64), voice=None),
    ]
    requests = [engine.request(asked) for asked in chats]  # the front end is free to use torch

    with LaunchGuard(device) if name == "cpu" else nullcontext() as guard, sync_guard(device, SyncCheck.ERROR):
        results = engine.run_requests(requests, [0, 3, 5])

    assert all(result.error is None for result in results), [result.error for result in results]
    assert results[0].wave.size
    assert guard is None or guard.operations > 1000


SEEN_AND_HEARD = chat(says("user", picture(64, 96, 1), sound(0.6, 1), "which one"))


def test_a_vision_tower_without_deepstack_levels() -> None:
    folder = tiny_checkpoint(131, deepstack=(), stop_gain=0.0, codec_stop_gain=0.0)
    assert_parity(OmniEngine(folder), [SEEN_AND_HEARD])


@pytest.mark.parametrize("holds_output", few(1, [True, False], SLOW))
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
    (result,) = assert_parity(OmniEngine(folder), [asked])
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
