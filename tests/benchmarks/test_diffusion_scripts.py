"""benchmarks/windows.py, denoise.py and precision.py run, and more context comes nearer to the whole."""

import json
from pathlib import Path

import pytest

from support.painter import paint_plugins
from tests.benchmarks.benchmark_script import run_script


def test_windows_tells_what_streaming_costs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "paint"}')
    file = tmp_path / "windows.json"
    monkeypatch.setattr("omni.plugin.manager.load_plugins", paint_plugins)
    run_script(monkeypatch, "windows", str(tmp_path), "--frames", "40", "--json", str(file))
    rows = {(row["before"], row["after"]): row for row in json.loads(file.read_text())["numbers"]}
    assert rows[0, 0]["work"] == 1
    assert rows[2, 1]["work"] == 2.5
    for measure in ("latents", "waveform"):
        alone, some, enough = (rows[pair][measure] for pair in ((0, 0), (1, 1), (4, 4)))
        assert alone > 2 * some > 0
        # The model has three steps, each of which sees one block to either side.
        assert enough < 1e-6


@pytest.mark.parametrize("how", [(), ("--eager", "--after", "0")])
def test_denoise_measures_streams(how: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "paint"}')
    file = tmp_path / "denoise.json"
    monkeypatch.setattr("omni.plugin.manager.load_plugins", paint_plugins)
    options = ("--device", "cpu", "--rows", "1", "3", "--frames", "20", "--json", str(file))
    run_script(monkeypatch, "denoise", str(tmp_path), *options, *how)
    rows = json.loads(file.read_text())["numbers"]
    assert [row["streams"] for row in rows] == [1, 3]
    assert all(row[name] > 0 for row in rows for name in ("first_ms", "step_ms", "rtf", "sound_per_second"))


def test_precision_tells_what_it_costs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "paint"}')
    file = tmp_path / "precision.json"
    monkeypatch.setattr("omni.plugin.manager.load_plugins", paint_plugins)
    run_script(monkeypatch, "precision", str(tmp_path), "--device", "cpu", "--frames", "20", "--json", str(file))
    rows = json.loads(file.read_text())["numbers"]
    assert [row["precision"] for row in rows] == ["float32", "TF32", "bfloat16"]
    assert rows[0]["latents"] == rows[0]["waveform"] == rows[0]["peak"] == 0
    assert all(0 <= row[name] < 1 for row in rows for name in ("latents", "waveform", "peak"))
