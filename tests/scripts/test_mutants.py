"""Planted faults: their kinds, and the verdicts on those of a tiny project."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutants.generate import faults_of, mutated, sample
from mutants.record import Record
from mutants.report import print_report, read_equivalent
from mutants.verdicts import Verdict, Verdicts, is_settled

from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
CODE = '''
def allows(count):
    """Up to three."""
    return count < 4


def count_down(count):
    while count > 0:
        count -= 1
    return count
'''
TESTS = """
from tiny.rules import allows, count_down


def test_few_are_allowed():
    assert allows(1)


def test_many_are_not():
    assert not allows(9)


def test_nothing_is_left():
    assert count_down(3) == 0
"""

DIES = """
import os
from pathlib import Path
from tiny.rules import allows


def test_dies_the_second_time():
    ran = Path("ran")
    if ran.exists():
        os._exit(3)
    ran.touch()
    assert allows(1)
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    for path, text in (
        ("tiny/rules.py", CODE),
        ("tests/test_rules.py", TESTS),
        ("pytest.ini", "[pytest]\npythonpath = .\n"),
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def _run(tiny: Path, *arguments: str) -> tuple[int, dict[str, str | None], str]:
    """The exit status, what caught each fault, and all that was printed."""
    command = [sys.executable, "-m", "mutants", "--folder=tiny", "--tests=tests", *arguments]
    paths = os.pathsep.join([str(ROOT / "scripts"), str(tiny)])
    done = subprocess.run(
        command,
        cwd=tiny,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    report = tiny / "build/mutants/verdicts.json"
    assert report.exists(), done.stdout + done.stderr
    return (
        done.returncode,
        {row["name"].split(" ", 1)[1]: row["why"] for row in json.loads(report.read_text())},
        done.stdout,
    )


def test_a_fault_survives_that_no_test_sees_and_another_is_caught(tiny: Path) -> None:
    code, why, printed = _run(tiny, "--only=allows: count < 4")
    assert code == 1, printed
    assert why["allows: count < 4 -> count <= 4"] is None
    assert (why["allows: count < 4 -> count >= 4"] or "").startswith("tests/test_rules.py::")
    assert "caught 1 of 2 that are not equivalent: 50.0%" in printed


@pytest.mark.slow
def test_a_loop_that_a_fault_makes_endless_is_caught(tiny: Path) -> None:
    code, why, printed = _run(tiny, "--patience=4", "--only=count -= 1 -> count += 1")
    assert code == 0, printed
    assert why == {"count_down: count -= 1 -> count += 1": "tests/test_rules.py::test_nothing_is_left did not end"}


def test_a_test_that_dies_without_the_fault_too_catches_nothing(tiny: Path) -> None:
    """It passes once, when it is recorded."""
    (tiny / "tests/test_dies.py").write_text(DIES)
    code, why, printed = _run(tiny, "--only=allows: count < 4 -> count <= 4")
    assert code == 1, printed
    assert why == {"allows: count < 4 -> count <= 4": None}
    assert "does not end without a fault: tests/test_dies.py::test_dies_the_second_time" in printed


def test_a_test_file_is_recorded_again_when_its_helpers_change(tmp_path: Path) -> None:
    texts = {
        "test_a.py": "from tests.near import help",
        "near.py": "POINT = 'support.far:Plugin'",
        "support/far.py": "import support.farther",
        "support/farther.py": "X = 1",
        "other.py": "X = 1",
    }
    for path, text in texts.items():
        (tmp_path / "tests" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / path).write_text(text)
    Record(tmp_path / "kept", tmp_path, ["a.py"]).store("tests/test_a.py", [], [])
    for path, lacks in (("other.py", False), ("support/farther.py", True)):
        (tmp_path / "tests" / path).write_text("X = 2")
        assert Record(tmp_path / "kept", tmp_path, ["a.py"]).lacks("tests/test_a.py") == lacks


def test_a_record_is_of_the_statements_of_some_files(tmp_path: Path) -> None:
    """Of others nothing is known: a test that runs them would count as one that does not."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("")
    Record(tmp_path / "kept", tmp_path, ["a.py", "b.py"]).store("tests/test_a.py", [], [])
    for paths, lacks in ((["b.py"], False), (["a.py", "b.py"], False), (["b.py", "c.py"], True)):
        assert Record(tmp_path / "kept", tmp_path, paths).lacks("tests/test_a.py") == lacks


def test_a_fault_that_is_known_to_change_nothing_does_not_count(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *others = [Verdict(fault) for fault in faults_of(tiny, "tiny/rules.py")][:4]
    others[0].why = "a test"
    assert print_report(["tiny"], [first, *others], {first.fault.name: "Nobody has four."}) == 1 / 3
    assert "said to be equivalent" not in capsys.readouterr().out
    print_report(["tiny"], others, {others[0].fault.name: "Nobody sees it."})
    assert f"said to be equivalent, and caught: {others[0].fault.name}" in capsys.readouterr().out


def test_caught_faults_are_not_planted_again(tiny: Path) -> None:
    faults = faults_of(tiny, "tiny/rules.py")
    path = tiny / "verdicts.json"
    Verdicts(path).add(Verdict(faults[0], 2, "a test"))
    Verdicts(path).add(Verdict(faults[1], 3))
    known = Verdicts(path)
    assert [known.of(fault) for fault in faults[:3]] == [Verdict(faults[0], 2, "a test"), Verdict(faults[1], 3), None]
    equivalent = {faults[1].name: "Nobody sees it."}
    assert [is_settled(fault, known, {}) for fault in faults[:3]] == [True, False, False]
    assert [is_settled(fault, known, equivalent) for fault in faults[:3]] == [True, True, False]


def test_each_fault_changes_the_code_and_still_compiles() -> None:
    path = "omni/engine/route.py"
    text = (ROOT / path).read_text()
    before, faults = ast.dump(ast.parse(text)), faults_of(ROOT, path)
    assert len({fault.name for fault in faults}) == len(faults) > 50
    for fault in faults[::3]:
        tree = mutated(text, fault)
        assert ast.dump(tree) != before, fault.name
        compile(tree, path, "exec")


def test_a_sample_is_the_seed_s_and_has_some_of_each_folder() -> None:
    by_folder = {
        path: faults_of(ROOT, path)
        for path in ("stages/omni_frames/store.py", "omni/engine/route.py", "omni/engine/priority_queue.py")
    }
    drawn = sample(by_folder, 40, seed=1, least=5)
    assert drawn == sample(by_folder, 40, seed=1, least=5) != sample(by_folder, 40, seed=2, least=5)
    assert all(sum(fault in faults for fault in drawn) >= min(5, len(faults)) for faults in by_folder.values())


def test_code_that_changes_elsewhere_leaves_the_rest_of_a_sample(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(CODE)
    before = {fault.name for fault in sample({"": faults_of(tmp_path, "rules.py")}, 8, seed=1, least=8)}
    (tmp_path / "rules.py").write_text(CODE.replace("def allows", "def other(a, b):\n    return a + b\n\n\ndef allows"))
    after = {fault.name for fault in sample({"": faults_of(tmp_path, "rules.py")}, 8, seed=1, least=8)}
    assert len(before & after) >= 5


def test_an_equivalent_fault_needs_a_reason(tmp_path: Path) -> None:
    known = tmp_path / "equivalent.txt"
    known.write_text("a.py f: 1 -> 2\n")
    with pytest.raises(ValueError, match=r"a\.py f: 1 -> 2 has no reason"):
        read_equivalent(known)


def test_every_fault_that_is_said_to_be_equivalent_has_a_reason() -> None:
    assert all(read_equivalent(ROOT / "scripts/mutants/equivalent.txt").values())
