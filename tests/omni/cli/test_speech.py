"""Where `omni run` puts speech: a file that is replaced when it is whole, a stream, several of either, and what cannot be.

Standard streams that are closed, full or without a reader: the answer's file is written all the same, and no traceback is.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import soundfile
from typer.testing import CliRunner, Result

from omni.cli import app
from tests.omni.cli.echo_program import environment, program
from tests.support.echo_family import RATE, SAMPLES, echo_model
from tests.support.patience import PATIENCE_SECONDS
from tests.support.resources import no_file_over
from tests.support.tiers import SLOW, few

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("installed")]

FULL = "error: standard output: cannot be written (No space left on device); send it where there is free space\n"
ENDLESS = ("--max-tokens", "1000000000")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def call(model: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["run", model, "hello", "--device", "cpu", *arguments])


@contextmanager
def stdout_to(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process writes there, by the number and by the name. Closes it."""
    kept = os.dup(1)
    os.dup2(descriptor, 1)
    os.close(descriptor)
    try:
        with monkeypatch.context() as patch, open(1, "w", closefd=False) as stdout:
            patch.setattr(sys, "stdout", stdout)
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def exit_code(model: str, *arguments: str) -> int:
    """Of a call whose streams are the process's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "excepthook", sys.excepthook)  # Typer replaces it
        with pytest.raises(SystemExit) as ended:
            app(["run", model, "hello", "--device", "cpu", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def assert_whole(path: Path) -> None:
    samples, rate = soundfile.read(path)
    assert (len(samples), rate) == (5 * SAMPLES, RATE)


def reader_gone() -> int:
    reads, writes = os.pipe()
    os.close(reads)
    return writes


def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def test_a_full_disk_leaves_the_wav_that_was_there(model: str, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"before")
    with no_file_over(200):
        ran = call(model, "--out", "a.wav")
    assert (ran.exit_code, ran.stdout) == (1, "hello\n")
    *_, times, tokens, error = ran.stderr.splitlines()
    assert times.startswith("TTFT")
    assert tokens.startswith("writer: 5 tokens")
    assert error.startswith("error: a.wav: cannot be written (File too large); ")
    assert (tmp_path / "a.wav").read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.wav", "echo"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--out", "echo"), "--out: echo cannot be written (it is a folder)"),
        (("--out", "echo/config.json/a.wav"), "--out: echo/config.json/a.wav cannot be written (Not a directory)"),
        (("--out", "no/a.wav"), "--out: no/a.wav cannot be written (No such file or directory)"),
        (("--out", "a.wav", "--n", "2"), "--out: a-1.wav cannot be written (it is a folder)"),
        (("--out", "-", "--n", "2"), "--out: - takes one answer, and --n asks for 2"),
        (("--out", "a.pcm", "--raw"), "--raw: is given, and a.pcm is a file"),
        (("--out", "/dev/null", "--n", "2"), "--out: /dev/null takes one answer, and --n asks for 2"),
        (("--out", "/dev/fd/77"), "--out: /dev/fd/77 cannot be written (it is closed)"),
        (("--voice", "high"), "--out: out.wav cannot be written (it is a folder)"),
    ],
)
def test_an_unwritable_output_is_refused_before_the_model_is_loaded(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], problem: str
) -> None:
    (tmp_path / "a-1.wav").mkdir()
    (tmp_path / "out.wav").mkdir()
    monkeypatch.setattr("omni.cli.run.Omni", lambda *_, **__: pytest.fail("the model is loaded"))
    ran = call(model, *arguments)
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr.startswith(f"error: {problem}; ")
    assert len(ran.stderr.splitlines()) == 1


def test_a_request_without_speech_needs_no_file(model: str, tmp_path: Path) -> None:
    (tmp_path / "out.wav").mkdir()
    assert call(model, "--modalities", "text").stdout == "hello\n"
    assert call(str(echo_model(tmp_path / "mute", speaks=False))).stdout == "hello\n"
    ran = call(model)
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error: --out: out.wav cannot be written (it is a folder)")


def test_of_several_answers_each_is_replaced_when_it_is_whole(model: str, tmp_path: Path) -> None:
    (tmp_path / "a-1.wav").write_bytes(b"before")
    (tmp_path / "a-1.wav").chmod(0o640)
    assert call(model, "--out", "a.wav", "--n", "2").exit_code == 0
    for sample in range(2):
        assert_whole(tmp_path / f"a-{sample}.wav")
    assert (tmp_path / "a-1.wav").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-0.wav", "a-1.wav", "echo"]


@pytest.mark.parametrize(
    ("opened", "error"),
    [
        (reader_gone, b""),
        (full, FULL.encode()),
    ],
)
def test_without_text_speech_goes_on_where_it_was_asked_for(
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
    opened: object,
    error: bytes,
) -> None:
    assert callable(opened)
    with stdout_to(opened(), monkeypatch):
        assert exit_code(model, "--out", "a.wav") == 1
    assert_whole(tmp_path / "a.wav")
    report = capfdbinary.readouterr().err
    assert report.startswith(b"wrote a.wav\nTTFT")
    assert report.partition(b"tokens/s\n")[2] == error
    with stdout_to(opened(), monkeypatch):
        assert exit_code(model, *ENDLESS) == 1  # it ends
    assert capfdbinary.readouterr().err == error
    assert not (tmp_path / "out.wav").exists()


def test_stdout_takes_a_wav(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Without the length in a pipe and in a growing file; with it in a file that is written as a whole."""
    assert call(model, "--out", "file.wav").exit_code == 0
    wav = (tmp_path / "file.wav").read_bytes()
    stream = wav[:4] + b"\xff" * 4 + wav[8:40] + b"\xff" * 4 + wav[44:]
    reads, writes = os.pipe()
    with open(reads, "rb") as pipe:
        with stdout_to(writes, monkeypatch):
            assert exit_code(model, "--out", "-") == 0
        assert pipe.read() == stream
    assert capfdbinary.readouterr().err.startswith(b"hello\nwrote -\nTTFT")
    for name, flags in (("/dev/stdout", os.O_TRUNC), ("/dev/fd/1", os.O_APPEND), ("/proc/self/fd/1", os.O_TRUNC)):
        (tmp_path / "to").write_bytes(b"before")
        with stdout_to(os.open(tmp_path / "to", os.O_RDWR | flags), monkeypatch):
            assert exit_code(model, "--out", name) == 0
        expected = wav if flags == os.O_TRUNC else b"before" + stream
        assert (tmp_path / "to").read_bytes() == expected


@pytest.mark.parametrize("arguments", [("--raw",), ("--raw", "--out", "-"), ("--out", "/dev/fd/1", "--raw")])
def test_stdout_takes_samples_alone(
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
    arguments: tuple[str, ...],
) -> None:
    assert call(model, "--out", "file.wav").exit_code == 0
    samples = (tmp_path / "file.wav").read_bytes()[44:]
    with stdout_to(os.open(tmp_path / "to", os.O_RDWR | os.O_CREAT), monkeypatch):
        assert exit_code(model, *arguments) == 0
    assert (tmp_path / "to").read_bytes() == samples
    name = arguments[arguments.index("--out") + 1] if "--out" in arguments else "-"
    said = f"hello\nwrote {name} (16-bit little-endian mono PCM, {RATE} Hz)\nTTFT"
    assert capfdbinary.readouterr().err.decode().startswith(said)


def test_a_wav_comes_while_it_is_made(tmp_path: Path, model: str) -> None:
    command = [*program(), "run", model, "hello", "--out", "-", *ENDLESS, "--device", "cpu"]
    with open(tmp_path / "stderr", "wb") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, cwd=tmp_path, env=environment())
    assert process.stdout is not None
    with process.stdout:
        assert len(process.stdout.read(44 + 2 * SAMPLES * 5)) == 44 + 2 * SAMPLES * 5
    # Its reader has closed the pipe on purpose.
    assert process.wait(PATIENCE_SECONDS) == 1
    assert set((tmp_path / "stderr").read_bytes().strip()) <= set(b"hello")


def test_a_pipe_takes_a_wav_and_stays_a_pipe(model: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with open(os.open("pipe", os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe:
        ran = call(model, "--out", "pipe")
        heard = pipe.read()
    assert (ran.exit_code, ran.stdout) == (0, "hello\n")
    assert "wrote pipe\n" in ran.stderr
    assert (tmp_path / "pipe").is_fifo()
    assert (heard[:4] + heard[8:12], len(heard)) == (b"RIFFWAVE", 44 + 2 * SAMPLES * 5)


def test_a_device_that_is_full_takes_no_text_away(model: str) -> None:
    ran = call(model, "--out", "/dev/full")
    assert (ran.exit_code, ran.stdout) == (1, "hello\n")
    problem = "/dev/full cannot be written (No space left on device); send it where it can be written"
    assert ran.stderr.splitlines()[-1] == f"error: --out: {problem}"


def run(folder: Path, redirections: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Through a shell, which opens and closes streams as it does for users."""
    shell = ["sh", "-c", f'"$@" {redirections}', "sh"]
    command = [*shell, *program(), *arguments]
    return subprocess.run(command, capture_output=True, cwd=folder, env=environment(), timeout=PATIENCE_SECONDS)


def answer(folder: Path, redirections: str, model: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return run(folder, redirections, "run", model, "hello", "--device", "cpu", *arguments)


@pytest.mark.parametrize("closed", few(1, ["<&- >&- 2>&-", ">&-"], SLOW))
def test_closed_outputs_do_not_lose_the_speech(tmp_path: Path, model: str, closed: str) -> None:
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
def test_commands_that_print_report_a_full_output_in_a_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ran = run(tmp_path, ">/dev/full", *arguments)
    assert (ran.returncode, ran.stderr.decode()) == (1, FULL)
    gone = run(tmp_path, "| :", *arguments)
    assert gone.stderr == b""
