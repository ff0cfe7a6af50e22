"""A family with speech, written as a third party's plugin, through the public interface; and its size."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omni import CheckpointError, InputError, Omni, SamplingParams
from omni.checkpoint import Checkpoint
from omni.engine import RequestFinished, StageOutput
from omni.tiny import write_json
from tests.examples.plain_speech import HOME, MOST, TEXTS, TOLERANCE, PlainSpeech, greedy, plugins, write_tiny
from tests.support.echo_family import eventually
from tests.support.entry_points import REPOSITORY

LIMIT = 300
"""Lines of the whole family, whatever they hold."""
TUTORIAL = (REPOSITORY / "docs" / "tutorials" / "speech.md").read_text()
TESTS = (REPOSITORY / "docs" / "plugins.md").read_text()
PICTURE = {"type": "image_url", "image_url": {"url": str(REPOSITORY / "examples/assets/shapes.png")}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("plain_tts") / "model")


@pytest.fixture(scope="module")
def omni(folder: Path) -> Iterator[Omni]:
    with Omni(folder, plugins=plugins(), device="cpu", overrides={"vocoder.chunk_frames": 4}) as omni:
        yield omni


def test_the_family_stays_small() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in HOME.rglob("*.py")}
    assert lines.keys() >= {
        "plugin.py",
        "config.py",
        "pipeline.py",
        "frontend.py",
        "talker.py",
        "vocoder.py",
        "tiny.py",
    }
    assert sum(lines.values()) <= LIMIT, lines


def test_the_tutorial_shows_the_family_as_it_is() -> None:
    pattern = r"^`plain_tts/(\w+\.py)`: [^\n]*\n\n```python\n(.*?)```"
    shown = dict(re.findall(pattern, TUTORIAL, re.DOTALL | re.MULTILINE))
    assert shown.keys() == {path.name for path in (HOME / "plain_tts").glob("[a-z]*.py")}
    for name, code in shown.items():
        assert code == (HOME / "plain_tts" / name).read_text(), f"{name} differs"
    (pyproject,) = re.findall(r"```toml\n(.*?)```", TUTORIAL, re.DOTALL)
    assert pyproject == (HOME / "pyproject.toml").read_text()


def test_the_listing_runs_on_a_simulated_device(folder: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TESTS, re.DOTALL)
    (code,) = (block for block in blocks if "SimulatedDevice(" in block)
    names: dict[str, Any] = {"folder": folder, "plugins": plugins()}
    exec(code, names)
    assert sum(isinstance(output, StageOutput) for output in names["outputs"]) > 1
    assert isinstance(names["outputs"][-1], RequestFinished)


def test_streamed_and_whole_speech_is_that_of_a_plain_loop(omni: Omni, folder: Path) -> None:
    speech = PlainSpeech(folder).speak(TEXTS[0], MOST)
    outputs = list(omni.generate(TEXTS[0], sampling=greedy()))
    pieces = [output.audio for output in outputs if output.audio is not None]
    whole = omni.generate(TEXTS[0], stream=False, sampling=greedy())
    assert len(pieces) > 3
    assert whole.audio is not None
    assert torch.equal(torch.cat(pieces), whole.audio)
    assert {output.sample_rate for output in outputs if output.audio is not None} == {whole.sample_rate} == {16000}
    peak = np.abs(speech.wave).max()
    assert 0.1 < peak < 0.95
    assert np.abs(whole.audio.numpy() - speech.wave).max() <= TOLERANCE * peak
    assert outputs[-1].finish_reasons["talker"] == speech.reason == "length"


@pytest.mark.parametrize(
    ("messages", "settings", "message"),
    [
        ("  \n", {}, r"messages\[0\].content: holds no text"),
        ([{"role": "user", "content": [PICTURE]}], {}, r"messages\[0\].content\[0\].image_url: is sound or a picture"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], {}, "messages: are 2; give one"),
        ([{"role": "user", "content": "a", "name": "ann"}], {}, r"messages\[0\].name: is given, but"),
        ("much " * 200, {}, "prompt.* tokens"),
        ("a", {"voice": "ann"}, "voice: is given, but this model has no voices"),
        ("a", {"modalities": ("text",)}, "modalities: this checkpoint does not give 'text'"),
        ("a", {"sampling": SamplingParams(stop=("b",))}, "sampling.stop"),
        ("a", {"sampling": {"vocoder": SamplingParams()}}, "sampling.vocoder: there is no stage"),
    ],
)
def test_requests_that_are_refused(omni: Omni, messages: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        omni.generate(messages, stream=False, **settings)
    # The thread that gives the error forgets the request right behind it.
    assert eventually(lambda: omni.idle)


def test_a_control_token_in_a_text_is_text(omni: Omni) -> None:
    said = omni.generate("say <|speak|>", stream=False, sampling=SamplingParams(max_tokens=2, temperature=0.0))
    assert said.usage.prompt_tokens == len("say <|speak|>") + 1


@pytest.mark.parametrize(
    ("part", "field", "value", "message"),
    [
        (None, "codebook_size", None, "config.json: .*codebook_size"),
        (None, "codebook_size", 41, "wrong tensor shape"),
        (None, "num_groups", 1, "config.json: num_groups: .*>= 2"),
        (None, "speak_token", 5000, "config.json: speak_token: 5000 is out of range"),
        ("vocoder", "rates", [5, 0, 2], r"config.json: vocoder.rates\[1\]: .*>= 1"),
        ("talker", "hidden_act", "gelu", "config.json: hidden_act: 'gelu' is not supported"),
        ("code_predictor", "hidden_size", 48, "config.json: code_predictor.hidden_size: is not the talker's"),
    ],
)
def test_configs_that_are_refused(
    folder: Path, tmp_path: Path, part: str | None, field: str, value: object, message: str
) -> None:
    broken = shutil.copytree(folder, tmp_path / "model")
    config = Checkpoint(broken).config
    (config if part is None else config[part])[field] = value
    write_json(broken / "config.json", config)
    with pytest.raises(CheckpointError, match=message):
        Omni(broken, plugins=plugins(), device="cpu")
