"""Benchmarks refuse wrong arguments before they build or measure."""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.benchmarks.benchmark_script import BENCHMARKS, run_script

SCRIPTS = {
    path.relative_to(BENCHMARKS).with_suffix("").as_posix(): text
    for path in sorted(BENCHMARKS.rglob("*.py"))
    if "ArgumentParser(" in (text := path.read_text())
}
"""By name, their text."""
PRETENDS = {"compile_time", "host_ranks"}
"""Need no device of those that they ask about."""
MODEL = ("model",)
NEEDED = {
    "denoise": MODEL,
    "precision": MODEL,
    "windows": (*MODEL, "--device", "cuda"),
    "load": ("--device", "cuda"),
    "timeline_cost": ("--device", "cuda"),
    "vocoder_stream": ("--device", "cuda"),
    "tune/in_steps": ("tiny-omni", "1"),
    "tune/layer_times": ("code-predictor", "8"),
    "tune/moe": ("--shape", "thinker", "--out", "moe.json"),
}
"""The arguments with which a script uses a CUDA device."""


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS / "tune"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module, before = importlib.import_module("bench.arguments"), set(sys.modules)
    yield module
    for name in set(sys.modules) - before:
        # Scripts that others import: a later test may have to patch what they import themselves.
        if name in SCRIPTS:
            del sys.modules[name]


@pytest.mark.parametrize(
    "name", [name for name, text in SCRIPTS.items() if "cuda" in text.lower() and name not in PRETENDS]
)
def test_a_script_without_its_cuda_device_ends_with_one_line(
    name: str, arguments: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(SystemExit, match=r"^needs cuda:0, and torch \S+ finds 0 CUDA devices here: .* the CPU$"):
        run_script(monkeypatch, name, *NEEDED.get(name, ()))


class _Asked(Exception):
    """Instead of parsing. The parser is its argument."""


def _parser(monkeypatch: pytest.MonkeyPatch, name: str) -> argparse.ArgumentParser:
    def refuse(parser: argparse.ArgumentParser, *_: object) -> None:
        raise _Asked(parser)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", refuse)
    with pytest.raises(_Asked) as caught:
        run_script(monkeypatch, name)
    parser: argparse.ArgumentParser = caught.value.args[0]
    return parser


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_checks_numbers_and_outputs(name: str, arguments: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    types = {action.dest: action.type for action in _parser(monkeypatch, name)._actions}
    types.pop("bar", None)  # any number is one
    assert not {dest for dest, of in types.items() if of in (int, float)}
    outputs = {dest: of for dest, of in types.items() if dest in ("json", "out", "pictures", "timeline")}
    assert set(outputs.values()) <= {arguments.output_file, arguments.output_folder}


def refused(of: Callable[[str], Any], text: str) -> str:
    """The error of a parser for `--given=text`."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--given", type=of)
    with pytest.raises(argparse.ArgumentError) as caught:
        parser.parse_args([f"--given={text}"])
    return str(caught.value)


def test_numbers_are_checked(arguments: ModuleType) -> None:
    for text in ("0", "-1", "1.5", "", "many", "²"):
        problem = f"argument --given: {text!r} is not a whole number of 1 or more"
        assert refused(arguments.positive_int, text) == problem
    assert refused(arguments.at_least(3), "2").endswith("of 3 or more")
    assert (arguments.at_least(3)("3"), arguments.at_least(0)("0"), arguments.positive_int("12")) == (3, 0, 12)
    for text in ("0", "-0.5", "nan", "inf", "much"):
        assert refused(arguments.positive_float, text) == f"argument --given: {text!r} is not a positive number"
    assert arguments.positive_float("0.5") == 0.5
    for text in ("-0.1", "1.1", "nan", "inf", "much"):
        assert refused(arguments.probability, text) == f"argument --given: {text!r} is not a number from 0 to 1"
    assert [arguments.probability(text) for text in ("0", "0.7", "1")] == [0.0, 0.7, 1.0]


def test_a_file_is_tried_and_left_as_it_was(arguments: ModuleType, tmp_path: Path) -> None:
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    old.write_text("numbers")
    assert arguments.output_file(str(new)) == new
    assert not new.exists()
    assert arguments.output_file(str(old)) == old
    assert old.read_text() == "numbers"


def test_a_file_that_cannot_be_written_is_refused(arguments: ModuleType, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing" / "new.json")
    problem = f"argument --given: {missing!r} cannot be written to: No such file or directory"
    assert refused(arguments.output_file, missing) == problem
    assert "cannot be written to: Is a directory" in refused(arguments.output_file, str(tmp_path))
    assert "cannot be written to" in refused(arguments.output_file, "/proc/new.json")  # not by root either


def test_a_folder_is_made(arguments: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "by it"
    for _ in range(2):
        assert arguments.output_folder(str(folder)) == folder
        assert not list(folder.iterdir())


def test_a_folder_that_takes_no_files_is_refused(arguments: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder in (str(file), "/proc/new", "/proc"):
        assert f"{folder!r} cannot be a folder to write to: " in refused(arguments.output_folder, folder)


def test_a_device_that_is_missing_is_refused(arguments: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    of = arguments.device_here("--device cpu")
    assert [of(name) for name in ("cpu", "cuda", "cuda:0")] == ["cpu", "cuda", "cuda:0"]
    arguments.need_cuda()
    with pytest.raises(SystemExit, match=r"^needs cuda:1, .* finds 1 CUDA devices here: --device cpu runs on the CPU$"):
        of("cuda:1")
    assert "'tpu' is not a device" in refused(of, "tpu")
