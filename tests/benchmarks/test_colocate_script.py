"""benchmarks/colocate.py runs a thinker and a talker alone and together."""

import importlib
import json
from pathlib import Path
from queue import Queue
from types import SimpleNamespace

import pytest

from tests.benchmarks.benchmark_script import BENCHMARKS, run_script


def _outcomes(monkeypatch: pytest.MonkeyPatch, folder: Path, *modes: str) -> dict[str, set[str]]:
    file = folder / "colocate.json"
    run_script(monkeypatch, "colocate", "--device", "cpu", "--tiny", "--modes", *modes, "--json", str(file))
    return {one["name"]: set(one["times"]) for one in json.loads(file.read_text())["numbers"]}


def test_colocate_in_one_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = {"thinker", "talker"}
    found = _outcomes(monkeypatch, tmp_path, "alone", "loop")
    assert found == {"alone": both, "one loop, one priority": both, "one loop, talker first": both}
    alone = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("alone  "))
    assert alone.split()[-1] == "2.00"  # each is as fast as itself


@pytest.mark.parametrize(
    ("codes", "patience", "told"), [((None, 1), 60.0, "talker 1"), ((None, None), 0.0, "more than 0.0 s")]
)
def test_a_process_that_gives_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, codes: tuple[int | None, ...], patience: float, told: str
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    processes = importlib.import_module("bench.processes")
    monkeypatch.setattr(processes, "_LOOK", 0.01)
    children = [
        SimpleNamespace(name=name, exitcode=code) for name, code in zip(("thinker", "talker"), codes, strict=True)
    ]
    results: Queue[dict[str, object]] = Queue()
    results.put({"thinker": None})
    with pytest.raises(RuntimeError, match=told):
        processes.answers_of(children, results, patience)


@pytest.mark.slow
def test_colocate_as_two_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _outcomes(monkeypatch, tmp_path, "processes") == {"two processes": {"thinker", "talker"}}
