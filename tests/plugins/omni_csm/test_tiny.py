"""The tiny checkpoint is not degenerate, and served."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from typer.testing import CliRunner

from omni import Omni, SamplingParams
from omni.cli import app
from omni.errors import InputError
from omni.plugin.manager import load_plugins
from tests.support.csm_reference import csm_reference_of, speak, tiny_csm, turn
from tests.support.entry_points import own_entry_points
from tests.support.reference import sound


def test_codes_of_every_group_vary() -> None:
    codes = csm_reference_of(tiny_csm()).speech(speak("hello there", frames=30)).codes
    assert all(len(group.unique()) > 8 for group in codes)


@pytest.fixture(scope="module")
def omni() -> Iterator[Omni]:
    plugins = load_plugins(own_entry_points("ar", "csm", "encoder", "local", "vocoder"))
    with Omni(tiny_csm(), device="cpu", plugins=plugins) as omni:
        yield omni


def test_through_the_public_interface(omni: Omni) -> None:
    clip = sound(0.4, 1, 24000)
    turns: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "hi"}, {"type": "input_audio", "input_audio": clip.samples}],
            "name": "1",
        },
        {"role": "user", "content": "hello there", "name": "4"},
    ]
    result = omni.generate(turns, sampling=SamplingParams(max_tokens=8, temperature=0.0), stream=False)
    assert result.audio is not None
    assert result.audio.shape == (8 * 1920,)
    assert result.sample_rate == 24000
    assert (result.text, result.tokens, result.metrics.ttft) == ("", (), None)
    said = speak(turn("user", "hi", 0.4, 1, "1"), turn("user", "hello there", name="4"), frames=8)
    assert (result.audio - torch.from_numpy(csm_reference_of(tiny_csm()).speech(said).wave)).abs().max() < 1e-5


def test_sampling_parameters_of_texts_are_refused(omni: Omni) -> None:
    with pytest.raises(InputError, match=r"sampling\.stop: is about the text, .* does not write; leave it out"):
        omni.generate("hello", sampling=SamplingParams(stop=("a",)), stream=False)


def test_the_command_line_speaks_without_a_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("omni.plugin.manager.entry_points", lambda group: own_entry_points())
    run = ["run", str(tiny_csm()), "hello", "--max-tokens", "5", "--device", "cpu", "--out", str(tmp_path / "a.wav")]
    result = CliRunner().invoke(app, run)
    assert (result.exit_code, result.stdout) == (0, "")
    assert re.search(r"wrote .*a.wav\nfirst audio .* \| total [\d.]+ s\nbackbone: 5 tokens", result.stderr)
    assert "TTFT" not in result.stderr
    assert soundfile.info(tmp_path / "a.wav").frames == 5 * 1920
    several = CliRunner().invoke(app, [*run, "--n", "2"])
    assert (several.exit_code, several.stdout) == (0, "")
    assert {file.name for file in tmp_path.iterdir()} == {"a.wav", "a-0.wav", "a-1.wav"}
