"""The command line, on a family that echoes."""

import json
import os
import pty
import re
import subprocess
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image
from typer.testing import CliRunner, Result

import omni
from omni.cli import app
from omni.errors import InputError
from tests.omni.cli.echo_program import program
from tests.support.echo_family import BREAK, BREAK_OTHERS, OPENED, RATE, SAMPLE, SAMPLES
from tests.support.entry_points import REPOSITORY, own_entry_points
from tests.support.patience import PATIENCE_SECONDS
from tests.support.resources import no_file_over

pytestmark = pytest.mark.usefixtures("installed")


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def refused(*arguments: str) -> str:
    """The one line that a failing command prints."""
    result = call(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a wav without a name goes here


def test_the_version_is_that_of_the_package() -> None:
    result = call("--version")
    assert (result.exit_code, result.output) == (0, f"omni {omni.__version__}\n")
    assert f'version = "{omni.__version__}"' in (REPOSITORY / "pyproject.toml").read_text()


def test_run_streams_the_text_and_reports(model: str) -> None:
    result = call("run", model, "hello", "--device", "cpu", "--modalities", "text")
    assert (result.exit_code, result.stdout) == (0, "hello\n")
    assert re.search(r"TTFT \d+\.\d{3} s \| total \d", result.stderr)
    assert re.search(r"writer: 5 tokens, [\d.]+ tokens/s", result.stderr)
    assert "audio" not in result.stderr


def test_run_writes_the_wav(model: str, tmp_path: Path) -> None:
    out = tmp_path / "answer.wav"
    result = call("run", model, "hello", "--out", str(out), "--voice", "high", "--device", "cpu")
    assert (result.exit_code, result.stdout) == (0, "hello\n")
    samples, rate = soundfile.read(out)
    assert (len(samples), rate) == (5 * SAMPLES, RATE)
    assert f"wrote {out}" in result.stderr
    assert re.search(r"TTFT .* first audio .* audio 0\.05 s .* RTF \d", result.stderr)


def test_a_model_that_speaks_is_heard_unasked(model: str, tmp_path: Path) -> None:
    assert call("run", model, "hello", "--device", "cpu").exit_code == 0
    assert (tmp_path / "out.wav").exists()


def test_run_puts_pictures_first_and_the_text_last(model: str, tmp_path: Path) -> None:
    Image.new("RGB", (5, 4)).save(tmp_path / "a.png")
    soundfile.write(tmp_path / "a.wav", np.zeros(1600), 16000)
    media = ["--audio", str(tmp_path / "a.wav"), "--image", str(tmp_path / "a.png"), "--image", str(tmp_path / "a.png")]
    result = call("run", model, "hello", "--system", "be brief", *media, "--device", "cpu")
    assert result.stdout == "be brief|<5x4>|<5x4>|<1600 samples>|hello\n"


def test_run_limits_and_overrides(model: str) -> None:
    settings = ["--max-tokens", "7", "--seed", "3", "--set", "writer.tokens_per_tick=2", "--dtype", "float32"]
    result = call("run", model, "hello", *settings, "--load-format", "dummy", "--modalities", "text", "--device", "cpu")
    assert (result.exit_code, result.stdout) == (0, "hellohe\n")


def test_run_gives_several_answers(model: str, tmp_path: Path) -> None:
    out = tmp_path / "a.wav"
    result = call("run", model, f"no {SAMPLE}", "--n", "2", "--out", str(out), "--device", "cpu")
    assert result.exit_code == 0
    assert sorted(result.stdout.split("--- ")) == ["", "0\nno 0\n", "1\nno 1\n"]
    assert f"wrote {tmp_path / 'a-0.wav'}" in result.stderr
    assert (tmp_path / "a-1.wav").is_file()
    assert not out.exists()


def test_one_failing_answer_does_not_hide_the_others(model: str) -> None:
    result = call("run", model, f"ab{BREAK_OTHERS}", "--n", "2", "--modalities", "text", "--device", "cpu")
    assert result.exit_code == 1
    assert f"--- 0\nab{BREAK_OTHERS}\n" in result.stdout
    assert result.stderr.rstrip().splitlines()[-1].startswith("error: stage 'writer' failed while writing")


def test_settings_reach_every_sampling_parameter(model: str) -> None:
    settings = [
        *('stop=["lo"]', "min_tokens=2", 'logit_bias={"5": 1.5}', "bad_words_ids=[[1, 2], [3]]", "logprobs=2"),
        *('structured={"choice": ["hello"]}', 'processors={"name": {"key": 1}}', "ignore_eos=true", "min_p=0.5"),
        "allowed_token_ids=[1, 2]",
    ]
    OPENED.clear()
    given = [argument for setting in settings for argument in ("--set", f"writer.sampling.{setting}")]
    result = call("run", model, "hello", *given, "--modalities", "text", "--device", "cpu")
    assert (result.exit_code, result.stdout) == (0, "hel\n"), result.output
    assert len(OPENED[0].rules.host_processors) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere/at/all", "hi"], "there is no folder nowhere/at/all"),
        (["MODEL", "hi", "--set", "speed"], "write stage.option=value"),
        (["MODEL", "hi", "--set", "writer.speed=3"], "writer.speed: there is no option 'speed'"),
        (["MODEL", "hi", "--modalities", "text,smell"], "modalities: this checkpoint does not give 'smell'"),
        (["MODEL", "hi", "--modalities", "text", "--out", "a.wav"], "--out: needs audio among the modalities"),
        (["MODEL", "hi", "--modalities", "text", "--raw"], "--raw: needs audio among the modalities"),
        (["MODEL", "hi", "--timeline", "no/such/folder/t.json"], "--timeline: no/such/folder/t.json cannot be written"),
        (["MODEL", "hi", "--timeline", "/proc/t.json"], "--timeline: /proc/t.json cannot be written"),
        (["MODEL", "hi", "--timeline", "x", "--out", "./x"], "--timeline: x is the wav's name too"),
        (["MODEL", "hi", "--timeline", "x-1", "--out", "x", "--n", "2"], "--timeline: x-1 is the wav's name too"),
        (["MODEL", "hi", "--voice", "shrill"], "voice: 'shrill' is unknown"),
        (["MODEL", "hi", "--image", "none.png"], "messages[0].content[0].image_url"),
        (["MODEL", "hi", "--max-tokens", "0"], "sampling.writer.max_tokens"),
        (["MODEL", "hi", "--n", "0"], "n: 0 is out of range; use 1 to 64"),
        (["MODEL", "hi", "--set", "writer.sampling.max_tokens=x"], "writer.sampling.max_tokens: 'x' does not fit"),
        (["MODEL", "hi", "--set", 'writer.sampling.structured={"regex": "a("}'], "structured.regex: does not compile"),
        (["MODEL", "hi", "--device", "tpu"], "device: 'tpu' is not a device"),
        (["MODEL", "crash"], "ValueError: a bug"),
    ],
)
def test_errors_are_one_clear_line(model: str, arguments: list[str], words: str) -> None:
    arguments = [model if argument == "MODEL" else argument for argument in arguments]
    device = [] if "--device" in arguments else ["--device", "cpu"]
    assert words in refused("run", *arguments, *device)


def test_a_timeline_may_have_the_name_of_a_wav_that_is_not_written(model: str) -> None:
    arguments = ("run", model, "hello", "--device", "cpu", "--timeline", "out.wav")
    assert "--timeline: out.wav is the wav's name too" in refused(*arguments)
    result = call(*arguments, "--modalities", "text")
    assert (result.exit_code, result.stdout) == (0, "hello\n"), result.output


def test_a_timeline_that_cannot_be_written_in_the_end_takes_no_answer_away(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise InputError("t.json", "cannot be written (No space left on device)", "give another file name")

    monkeypatch.setattr("omni.timeline.file.TimelineFile.close", fail)
    result = call("run", model, "hello", "--device", "cpu", "--timeline", "t.json")
    assert (result.exit_code, result.stdout) == (1, "hello\n")
    *said, error = result.stderr.splitlines()
    assert error == "error: t.json: cannot be written (No space left on device); give another file name"
    assert "wrote out.wav" in said
    assert any("TTFT" in line for line in said)


def test_an_error_midway_comes_after_the_text(model: str) -> None:
    result = call("run", model, f"abc{BREAK}", "--device", "cpu")
    assert (result.exit_code, result.stdout) == (1, "ab\n")
    assert result.stderr.startswith("error: stage 'writer' failed while writing")


def test_debug_lets_the_traceback_through(model: str) -> None:
    result = call("run", model, "hi", "--voice", "shrill", "--debug", "--device", "cpu")
    assert isinstance(result.exception, omni.InputError)


def test_an_error_that_is_not_omnis_is_one_line_too(model: str) -> None:
    (Path(model) / "config.json").write_text('{"model_type": "echo"}')
    problem = "config.json: does not fit family 'echo': KeyError: 'speaks'"
    error = refused("run", model, "hi", "--device", "cpu")
    assert error.startswith(f"error: {problem} (")
    assert "tests/support/echo_family.py:" in error
    assert error.endswith(
        "); use the config.json that belongs to these weights; if it is right, correct tests.support.echo_family:pipeline"
    )


@pytest.mark.usefixtures("with_broken")
def test_plugins_as_a_table_and_as_json() -> None:
    result = call("plugins")
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert list(lines) == ["PLUGIN", "broken", "echo", "local"]
    assert lines["echo"].endswith("family echo, kind echo, kind tone")
    assert lines["broken"].endswith("broken: ModuleNotFoundError: No module named 'nothing_of_this_name'")
    assert "Traceback" not in result.stdout
    assert "Traceback" in call("plugins", "--verbose").stdout
    records = {record["name"]: record for record in json.loads(call("plugins", "--json").stdout)}
    assert records["local"]["registered"] == ["connector local"]
    assert records["local"]["error"] is None
    assert records["echo"]["module"] == "tests.support.echo_plugin"
    assert records["broken"]["error"].startswith("Traceback")


def test_plugins_needs_no_torch() -> None:
    last = 'import atexit\natexit.register(lambda: print("torch" in sys.modules))\n'
    command = [*program(before=last), "plugins"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    *table, torch_imported = ran.stdout.splitlines()
    assert len(table) == 2 + len(own_entry_points())
    assert torch_imported == "False"


def test_tiny_writes_a_checkpoint_that_runs(tmp_path: Path) -> None:
    target = str(tmp_path / "tiny")
    result = call("tiny", target, "--seed", "5")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"wrote a tiny echo checkpoint to {target}")
    assert json.loads((tmp_path / "tiny" / "config.json").read_text())["seed"] == 5
    assert call("run", target, "hi", "--device", "cpu").stdout == "hi\n"
    assert "exists already" in refused("tiny", target)


_WITHOUT_TINY = """
from omni.hookspecs import hookimpl
from omni.plugin.entries import ModelFamily
@hookimpl
def omni_model_families():
    return [ModelFamily(name="big", model_types=("big",), pipeline="nowhere:pipeline")]
"""


def test_tiny_refuses_families_that_have_none(
    tmp_path: Path, installed: list[EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "big_echo_plugin.py").write_text(_WITHOUT_TINY)
    monkeypatch.syspath_prepend(tmp_path)
    installed.append(EntryPoint("big", "big_echo_plugin", "omni"))
    target = str(tmp_path / "tiny")
    assert "use echo" in refused("tiny", target, "--family", "big")
    assert "there is no model family 'none'" in refused("tiny", target, "--family", "none")
    del installed[:]
    assert "no installed family has a tiny checkpoint" in refused("tiny", target)
    assert not Path(target).exists()


def test_tiny_fills_an_empty_folder_and_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the one the shell is in, or where a disk is mounted."""
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o750)
    number = folder.stat().st_ino
    monkeypatch.chdir(folder)
    assert call("tiny", ".").exit_code == 0
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    assert (folder.stat().st_ino, folder.stat().st_mode & 0o777) == (number, 0o750)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_tiny_files_have_the_mode_of_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: int, mode: int
) -> None:
    """safetensors writes for the owner alone: the server in a container could not read that."""

    def write(directory: Path, *, seed: int) -> None:
        (directory / "below").mkdir()
        for path in (directory / "weights", directory / "below" / "weights"):
            path.touch(mode=0o600)

    monkeypatch.setattr("omni.cli.tiny.locate", lambda path, field: write)
    before = os.umask(mask)
    try:
        assert call("tiny", str(tmp_path / "tiny")).exit_code == 0
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "tiny").rglob("*") if path.is_file()]
    assert [path.stat().st_mode & 0o777 for path in files] == [mode] * 2


def test_tiny_where_nothing_can_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    assert "cannot be written (Not a directory)" in refused("tiny", str(tmp_path / "file" / "tiny"))
    assert "cannot be written (" in refused("tiny", "/proc/tiny")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"before")]


def test_a_library_s_own_error_on_a_full_disk_names_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the disk that is named; a bug is one all the same."""

    def fail(directory: Path, *, seed: int) -> None:
        raise RuntimeError("iostream error")

    monkeypatch.setattr("omni.cli.tiny.locate", lambda path, field: fail)
    with no_file_over(1000):
        assert f"{tmp_path / 'tiny'}: cannot be written (File too large)" in refused("tiny", str(tmp_path / "tiny"))
    assert "error: families.echo.tiny: RuntimeError: iostream error (" in refused("tiny", str(tmp_path / "tiny"))
    assert list(tmp_path.iterdir()) == []


def test_tiny_asks_which_of_several(tmp_path: Path, installed: list[EntryPoint]) -> None:
    installed += own_entry_points("qwen3_omni")
    assert "use echo or qwen3_omni" in refused("tiny", str(tmp_path / "tiny"))


def test_on_a_terminal_the_audio_is_counted_after_the_text(model: str, tmp_path: Path) -> None:
    out = tmp_path / "a.wav"
    command = [*program(), "run", model, "he\nllo", "--out", str(out), "--device", "cpu"]
    leader, follower = pty.openpty()
    with os.fdopen(leader, "rb", buffering=0) as screen:
        ran = subprocess.Popen(command, stdout=follower, stderr=follower, close_fds=True)
        os.close(follower)
        shown = b""
        try:
            while block := screen.read(4096):
                shown += block
        except OSError:
            # Linux reports EIO when the other end of a terminal is closed.
            ...
        assert ran.wait(PATIENCE_SECONDS) == 0
    text = shown.decode().replace("\r\n", "\n")
    assert re.match(rf"he\nllo\n(\r\x1b\[Kaudio 0\.\d s)+\r\x1b\[Kwrote {re.escape(str(out))}\nTTFT", text)
