"""Standard streams that are closed, full or without a reader: the answer's file is written all the same, and no traceback is."""

import subprocess
from pathlib import Path

import pytest
import soundfile

from tests.omni.cli.echo_program import environment, program
from tests.support.echo_family import RATE, SAMPLES
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiers import SLOW, few

pytestmark = pytest.mark.thorough

Ran = subprocess.CompletedProcess[bytes]
FULL = "error: standard output: cannot be written (No space left on device); send it where there is room\n"


def run(folder: Path, redirections: str, *arguments: str) -> Ran:
    """Through a shell, which opens and closes streams as it does for users."""
    shell = ["sh", "-c", f'"$@" {redirections}', "sh"]
    command = [*shell, *program(), *arguments]
    return subprocess.run(command, capture_output=True, cwd=folder, env=environment(), timeout=PATIENCE_SECONDS)


def answer(folder: Path, redirections: str, model: str, *arguments: str) -> Ran:
    return run(folder, redirections, "run", model, "hello", "--device", "cpu", *arguments)


def assert_whole(path: Path) -> None:
    samples, rate = soundfile.read(path)
    assert (len(samples), rate) == (5 * SAMPLES, RATE)


@pytest.mark.parametrize("closed", few(1, ["<&- >&- 2>&-", ">&-"], SLOW))
def test_closed_ones(tmp_path: Path, model: str, closed: str) -> None:
    ran = answer(tmp_path, closed, model, "--out", "a.wav")
    assert ran.returncode == 0
    assert ran.stdout == (b"" if ">&-" in closed.split() else b"hello\n")
    assert (b"" if "2>&-" in closed else b"wrote a.wav\nTTFT") == ran.stderr[:16]
    assert_whole(tmp_path / "a.wav")


def test_nothing_else_takes_the_place_of_a_closed_one(tmp_path: Path) -> None:
    show = "import os\nos.write(9, ' '.join(os.readlink(f'/proc/self/fd/{n}') for n in range(3)).encode())\n"
    places = program(at="omni.cli.commands", code=show)
    shell = ["sh", "-c", '"$@" 9>places <&- >&- 2>&-', "sh"]
    ran = subprocess.run([*shell, *places, "--version"], cwd=tmp_path, env=environment(), timeout=PATIENCE_SECONDS)
    assert ran.returncode == 0
    assert (tmp_path / "places").read_text() == "/dev/null /dev/null /dev/null"


def test_reports_that_cannot_be_written_take_nothing_away(tmp_path: Path, model: str) -> None:
    ran = answer(tmp_path, "2>/dev/full", model, "--out", "a.wav")
    assert (ran.returncode, ran.stdout) == (0, b"hello\n")
    assert_whole(tmp_path / "a.wav")


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("plugins",), ("plugins", "--json")])
def test_what_is_only_printed_says_so_in_a_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ran = run(tmp_path, ">/dev/full", *arguments)
    assert (ran.returncode, ran.stderr.decode()) == (1, FULL)
    gone = run(tmp_path, "| :", *arguments)
    assert gone.stderr == b""
