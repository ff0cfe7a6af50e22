"""A family that speaks, written as a stranger's plugin, through the public interface; and that it is small."""

import asyncio
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from omni import AsyncOmni, CheckpointError, InputError, Omni, SamplingParams
from omni.checkpoint import Checkpoint
from omni.engine import RequestFinished, StageOutput
from omni.tiny import write_json
from tests.examples.plain_speech import HOME, MOST, TEXTS, TOLERANCE, PlainSpeech, greedy, plugins, write_tiny
from tests.support.entry_points import REPOSITORY

LIMIT = 300
"""Lines of the whole family, whatever they hold."""
TUTORIAL = (REPOSITORY / "docs" / "plugins.md").read_text()
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
    assert shown.keys() == {"config.py", "pipeline.py", "talker.py", "vocoder.py", "frontend.py"}
    for name, code in shown.items():
        assert code == (HOME / "plain_tts" / name).read_text(), f"{name} differs"


def test_the_tutorial_runs_on_a_simulated_device(folder: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
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


def test_requests_from_coroutines(folder: Path) -> None:
    async def speak_all() -> list[Any]:
        async with AsyncOmni(folder, plugins=plugins(), device="cpu") as omni:
            return await asyncio.gather(*(omni.complete(text, sampling=greedy()) for text in TEXTS))

    plain = PlainSpeech(folder)
    for text, result in zip(TEXTS, asyncio.run(speak_all()), strict=True):
        speech = plain.speak(text, MOST)
        spoken = np.empty(0, np.float32) if result.audio is None else result.audio.numpy()
        assert spoken.shape == speech.wave.shape
        assert np.allclose(spoken, speech.wave, rtol=0, atol=TOLERANCE * np.abs(speech.wave).max(initial=0))


def test_sampled_speech_follows_from_its_seed(omni: Omni) -> None:
    def sampled(seed: int) -> SamplingParams:
        return SamplingParams(seed=seed, max_tokens=MOST, ignore_eos=True)

    audios = [omni.generate(TEXTS[0], stream=False, sampling=sampled(seed)).audio for seed in (1, 2)]
    alone = [audio for audio in audios if audio is not None]
    assert not torch.equal(*alone)
    beside = omni.generate([TEXTS[2], TEXTS[0], TEXTS[4]], stream=False, sampling=sampled(1))
    assert beside[1].audio is not None
    assert torch.allclose(beside[1].audio, alone[0], rtol=0, atol=TOLERANCE)
    assert omni.counters()["talker"]["cached_tokens"] > 0


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
    assert omni.idle


def test_a_control_token_in_a_text_is_text(omni: Omni) -> None:
    said = omni.generate("say <|speak|>", stream=False, sampling=SamplingParams(max_tokens=2, temperature=0.0))
    assert said.usage.prompt_tokens == len("say <|speak|>") + 1


def _lacks_a_field(config: dict[str, Any]) -> None:
    del config["codebook_size"]


def _one_group(config: dict[str, Any]) -> None:
    config["num_groups"] = 1


def _rate_of_no_samples(config: dict[str, Any]) -> None:
    config["vocoder"]["rates"][1] = 0


def _unknown_speak_token(config: dict[str, Any]) -> None:
    config["speak_token"] = 5000


def _no_decoder(config: dict[str, Any]) -> None:
    config["talker"]["hidden_act"] = "gelu"


def _two_widths(config: dict[str, Any]) -> None:
    config["code_predictor"]["hidden_size"] = 48


def _more_codes(config: dict[str, Any]) -> None:
    config["codebook_size"] += 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_lacks_a_field, "config.json: .*codebook_size"),
        (_one_group, "config.json: num_groups: .*>= 2"),
        (_rate_of_no_samples, r"config.json: vocoder.rates\[1\]: .*>= 1"),
        (_unknown_speak_token, "config.json: speak_token: 5000 is out of range"),
        (_no_decoder, "config.json: hidden_act: 'gelu' is not supported"),
        (_two_widths, "config.json: code_predictor.hidden_size: is not the talker's"),
        (_more_codes, "wrong tensor shape"),
    ],
)
def test_configs_that_are_refused(
    folder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    broken = shutil.copytree(folder, tmp_path / "model")
    config = Checkpoint(broken).config
    change(config)
    write_json(broken / "config.json", config)
    with pytest.raises(CheckpointError, match=message):
        Omni(broken, plugins=plugins(), device="cpu")


@pytest.mark.parametrize(
    ("lost", "message"),
    [("tokenizer.json", "tokenizer: there is none"), ("vocoder.tables.1.weight", "tables.1.weight")],
)
def test_checkpoints_that_lack_something(folder: Path, tmp_path: Path, lost: str, message: str) -> None:
    broken = shutil.copytree(folder, tmp_path / "model")
    if lost.endswith(".weight"):
        weights = load_file(broken / "model.safetensors")
        save_file({name: weight for name, weight in weights.items() if name != lost}, broken / "model.safetensors")
    else:
        (broken / lost).unlink()
    with pytest.raises(CheckpointError, match=message):
        Omni(broken, plugins=plugins(), device="cpu")
