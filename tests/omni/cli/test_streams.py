"""Standard streams that are closed, full or without a reader: the answer's file is written all the same, and no traceback is."""

import os
import subprocess
from pathlib import Path

import pytest
import soundfile

from support.echo_family import RATE, SAMPLES
from support.echo_omni import echo_model
from support.echo_program import environment, program

Ran = subprocess.CompletedProcess[bytes]
FULL = "error: standard output cannot be written (No space left on device); send it where there is room\n"


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(echo_model(tmp_path))


def run(folder: Path, redirections: str, *arguments: str) -> Ran:
    """Through a shell, which opens and closes streams as it does for users."""
    shell = ["sh", "-c", f'"$@" {redirections}', "sh"]
    command = [*shell, *program(), *arguments]
    return subprocess.run(command, capture_output=True, cwd=folder, env=environment(), timeout=90)


def answer(folder: Path, redirections: str, model: str, *arguments: str) -> Ran:
    return run(folder, redirections, "run", model, "hello", "--device", "cpu", *arguments)


def assert_whole(path: Path) -> None:
    samples, rate = soundfile.read(path)
    assert (len(samples), rate) == (5 * SAMPLES, RATE)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_ones(tmp_path: Path, model: str, closed: str) -> None:
    ran = answer(tmp_path, closed, model, "--out", "a.wav")
    assert ran.returncode == 0
    assert ran.stdout == (b"" if ">&-" in closed.split() else b"hello\n")
    assert (b"" if "2>&-" in closed else b"wrote a.wav\nTTFT") == ran.stderr[:16]
    assert_whole(tmp_path / "a.wav")


def test_nothing_else_takes_the_place_of_a_closed_one(tmp_path: Path) -> None:
    show = "import os\nos.write(9, ' '.join(os.readlink(f'/proc/self/fd/{n}') for n in range(3)).encode())\n"
    places = program(at="omni.cli.process", code=show)
    shell = ["sh", "-c", '"$@" 9>places <&- >&- 2>&-', "sh"]
    ran = subprocess.run([*shell, *places, "--version"], cwd=tmp_path, env=environment(), timeout=90)
    assert ran.returncode == 0
    assert (tmp_path / "places").read_text() == "/dev/null /dev/null /dev/null"


def test_a_full_one_takes_no_wav_away(tmp_path: Path, model: str) -> None:
    ran = answer(tmp_path, ">/dev/full", model, "--out", "a.wav")
    assert ran.returncode == 1
    told = ran.stderr.decode()
    assert told.startswith("wrote a.wav\nTTFT")
    assert told.endswith("tokens/s\n" + FULL)
    assert_whole(tmp_path / "a.wav")


def test_a_full_one_ends_what_was_for_it_alone(tmp_path: Path, model: str) -> None:
    ran = answer(tmp_path, ">/dev/full", model, "--max-tokens", "1000000000")
    assert (ran.returncode, ran.stderr.decode()) == (1, FULL)
    assert not (tmp_path / "out.wav").exists()


def test_a_reader_that_went_away_takes_no_wav_away(tmp_path: Path, model: str) -> None:
    ran = answer(tmp_path, "| :", model, "--out", "a.wav")
    assert ran.stderr.startswith(b"wrote a.wav\nTTFT")
    assert b"error" not in ran.stderr
    assert_whole(tmp_path / "a.wav")


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


def test_a_wav_on_stdout(tmp_path: Path, model: str) -> None:
    """With its length where stdout is a file, for which `wav` is the reference; without in a pipe, and in a file that grows."""
    assert answer(tmp_path, "", model, "--out", "file.wav").returncode == 0
    wav = (tmp_path / "file.wav").read_bytes()
    piped = answer(tmp_path, "", model, "--out", "-")
    assert piped.returncode == 0
    assert piped.stdout == wav[:4] + b"\xff" * 4 + wav[8:40] + b"\xff" * 4 + wav[44:]
    assert piped.stderr.startswith(b"hello\nwrote -\nTTFT")
    assert answer(tmp_path, ">redirected.wav", model, "--out", "/dev/stdout").returncode == 0
    assert (tmp_path / "redirected.wav").read_bytes() == wav
    (tmp_path / "log").write_bytes(b"before")
    assert answer(tmp_path, ">>log", model, "--out", "/dev/fd/1").returncode == 0
    assert (tmp_path / "log").read_bytes() == b"before" + piped.stdout


def test_a_wav_comes_while_it_is_made(tmp_path: Path, model: str) -> None:
    command = [*program(), "run", model, "hello", "--out", "-", "--max-tokens", "1000000000", "--device", "cpu"]
    with open(tmp_path / "told", "wb") as told:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told, cwd=tmp_path, env=environment())
        assert process.stdout is not None
        with process.stdout:
            assert len(process.stdout.read(44 + 2 * SAMPLES * 5)) == 44 + 2 * SAMPLES * 5
        # Its reader has heard enough, and knows.
        assert process.wait(90) == 1
    text = (tmp_path / "told").read_bytes()
    assert set(text.strip()) <= set(b"hello")


@pytest.mark.parametrize(
    ("redirections", "arguments", "problem"),
    [
        (">&-", ("--out", "-"), "--out: - cannot be written (it is closed)"),
        ("", ("--out", "/dev/fd/77"), "--out: /dev/fd/77 cannot be written (it is closed)"),
        ("", ("--out", "-", "--n", "2"), "--out: - takes one answer, and --n asks for 2"),
        ("", ("--out", "/dev/null", "--n", "2"), "--out: /dev/null takes one answer, and --n asks for 2"),
    ],
)
def test_what_cannot_be_is_refused_before_the_model_is_loaded(
    tmp_path: Path, redirections: str, arguments: tuple[str, ...], problem: str
) -> None:
    ran = run(tmp_path, redirections, "run", "no/model", "hello", *arguments)
    assert ran.returncode == 1
    assert ran.stderr.decode().startswith(f"error: {problem}")


def test_a_pipe_takes_speech_and_stays_a_pipe(tmp_path: Path, model: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    ran = answer(tmp_path, "& cat pipe >heard.wav; wait", model, "--out", "pipe")
    assert ran.stdout == b"hello\n"
    assert b"wrote pipe\n" in ran.stderr
    assert (tmp_path / "pipe").is_fifo()
    heard = (tmp_path / "heard.wav").read_bytes()
    assert heard[:4] + heard[8:12] == b"RIFFWAVE"
    assert len(heard) == 44 + 2 * SAMPLES * 5


def test_a_device_that_is_full_takes_no_text_away(tmp_path: Path, model: str) -> None:
    ran = answer(tmp_path, "", model, "--out", "/dev/full")
    assert (ran.returncode, ran.stdout) == (1, b"hello\n")
    assert ran.stderr.decode().splitlines()[-1] == (
        "error: --out: /dev/full cannot be written (No space left on device); send it where it is taken"
    )
