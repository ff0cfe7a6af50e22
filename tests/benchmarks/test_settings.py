"""`--set` of benchmarks: as of `omni run`, it may be repeated, and a wrong one ends the script with one line."""

import argparse
import importlib
from types import ModuleType

import pytest

from tests.benchmarks.benchmark_script import BENCHMARKS, run_script

pytestmark = pytest.mark.thorough

WITH_SETTINGS = {
    "crowd": ("--rest", "0"),
    "neighbour": (),
    "ranks": ("--ranks", "2"),
    "start": (),
    "talk": (),
}
"""The scripts with `--set`, and arguments with which they open a model at once."""


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("bench.settings")


def test_a_repeated_set_keeps_the_earlier_settings(settings: ModuleType) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    settings.add_settings(parser)
    given = parser.parse_args(["--set", "engine.graphs=false", "a.b=c=d", "--set", "talker.place=cuda:1"]).set
    assert given == ["engine.graphs=false", "a.b=c=d", "talker.place=cuda:1"]
    assert settings.overrides_of(given) == {"engine.graphs": "false", "a.b": "c=d", "talker.place": "cuda:1"}
    assert parser.parse_args([]).set == [], "an earlier use leaves no setting behind"
    with pytest.raises(argparse.ArgumentError, match=r"^argument --set: 'graphs' is not an override: write stage\.opt"):
        parser.parse_args(["--set", "graphs"])


def test_every_script_with_set_has_the_same_option() -> None:
    texts = {path.stem: path.read_text() for path in BENCHMARKS.rglob("*.py") if path.name != "settings.py"}
    assert not [name for name, text in texts.items() if '"--set",' in text]
    assert {name for name, text in texts.items() if "add_settings(" in text} == WITH_SETTINGS.keys()


@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_an_unknown_setting_ends_a_script_with_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    what = ("--shape", "tiny-omni", "--device", "cpu", *WITH_SETTINGS[name])
    with pytest.raises(SystemExit) as ended:
        run_script(monkeypatch, name, *what, "--set", "engine.graphs=false", "--set", "thinker.max_rows=3")
    said = capfd.readouterr().err + str(ended.value)
    assert "error: thinker.max_rows: there is no option 'max_rows'; use one of max_num_seqs, " in said
    assert "Traceback" not in said
