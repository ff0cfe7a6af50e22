"""`omni serve` as a process: its address, its end at SIGTERM, and refusals before it loads a model."""

import asyncio
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from typer.testing import CliRunner

from omni import AsyncOmni, Omni
from omni.cli import app
from omni.cli.serve import voice_table
from omni.errors import ConfigError, StageError
from omni.pipeline import Pipeline
from omni.serve.audio.voices import Voices
from omni.serve.options import ServeOptions
from omni.serve.run import bound, serve
from tests.omni.cli.echo_program import environment, program
from tests.omni.serve.http_server import STRICT, echo_omni, served
from tests.support.echo_family import BREAK_LOOP, echo_plugins
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.thorough

ENDLESS: dict[str, Any] = {
    "model": "echo",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 10**9,
    "stream": True,
}


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The process, and the address that it reports."""
    command = [*program(), "serve", str(folder), "--device", "cpu", "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    with process:
        try:
            yield process, _address(process, folder.name)
        finally:
            process.kill()


def _address(process: "subprocess.Popen[str]", name: str) -> str:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        found = re.search(r"serving (\S+) at (http://\S+) ", line)
        if found:
            assert found[1] == name
            return found[2]
    raise AssertionError("".join(lines))


def test_sigterm_lets_answers_end_and_refuses_new_ones(echo_folder: Path) -> None:
    with serving(echo_folder) as (process, url):
        assert httpx.get(f"{url}/health").status_code == 200
        body = {**ENDLESS, "max_tokens": 3000}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=PATIENCE_SECONDS) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert rest[-2] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-4]
        assert process.wait(PATIENCE_SECONDS) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


def test_answers_beyond_the_drain_limit_are_ended(echo_folder: Path) -> None:
    with served(echo_omni(echo_folder), drain_seconds=1) as it:
        body = {**ENDLESS, "model": "tiny"}
        url = f"{it.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=PATIENCE_SECONDS) as response:
            lines = response.iter_lines()
            next(lines)
            it.http.should_exit = True
            with pytest.raises(httpx.RemoteProtocolError):
                list(lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "70000"], "port must be 0 to 65535"),
        (["--max-requests", "0"], "max_requests must be greater than 0"),
        (["--api-key", ""], "api_keys must be printable"),
        (["--host", "256.0.0.1"], "cannot listen at 256.0.0.1"),
        (["--media-folder", "no-folder"], "--media-folder: 'no-folder' is not a folder"),
        (["--limit", "max_sessions=0"], "max_sessions must be greater than 0"),
        (["--limit", "max_sessions=1.5"], "max_sessions"),
        (["--limit", "max_sessions"], "write NAME=VALUE"),
        (["--limit", "body_seconds=soon"], "'soon' is not a number"),
        (["--limit", "body_seconds=nan"], "body_seconds must be greater than 0"),
        (["--limit", "sessions=3"], "use one of max_upload_bytes, "),
        (["--limit", "max_requests=3"], "'max_requests' is not a limit"),
    ],
)
def test_settings_are_checked_before_a_model_is_loaded(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["serve", "no-model", *arguments])
    assert result.exit_code == 1
    assert words in result.stderr


def test_a_port_in_use_is_reported_before_a_model_is_loaded() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        result = CliRunner().invoke(app, ["serve", "no-model", "--port", str(other.getsockname()[1])])
    assert (result.exit_code, "cannot listen at 127.0.0.1" in result.stderr) == (1, True)


def test_a_failed_engine_ends_the_server_with_an_error(echo_folder: Path) -> None:
    """Requests under way are answered, and systemd or Kubernetes then starts another server."""
    with serving(echo_folder) as (process, url):
        body = {"model": "echo", "messages": [{"role": "user", "content": f"a{BREAK_LOOP}"}]}
        response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE_SECONDS)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_failed")
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(PATIENCE_SECONDS) == 1
        assert "error: stage 'engine' failed" in said
        assert "boom" in said


def test_an_engine_that_fails_while_the_server_drains_is_an_error_too(echo_folder: Path) -> None:
    """Answers under way were lost: the exit code reports it."""
    with serving(echo_folder, "--drain-seconds", "300") as (process, url):
        body = {**ENDLESS, "messages": [{"role": "user", "content": "hello" * 600 + BREAK_LOOP}]}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=PATIENCE_SECONDS) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert '"code":"engine_failed"' in rest[-1]
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(PATIENCE_SECONDS) == 1
        assert "error: stage 'engine' failed" in said
        assert "all requests are over" not in said


def test_a_device_that_is_not_here_is_refused_before_anything_is_read(
    echo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the engine would have a process of its own."""

    def read(*arguments: object, **options: object) -> None:
        raise AssertionError("the checkpoint is read")

    monkeypatch.setattr("omni.api.load.open_checkpoint", read)
    for device in ("cuda:77", None):
        overrides = {**STRICT, "engine.process": "process", **({} if device else {"engine.device": "cuda:77"})}
        with pytest.raises(ConfigError, match="'cuda:77' does not exist here"):
            AsyncOmni(echo_folder, device=device, plugins=echo_plugins(), overrides=overrides)


@pytest.mark.parametrize("place", ["cuda:77", "cpu/2,cuda:77", "cuda:77/2"])
@pytest.mark.parametrize("command", [["run", "no-model", "hello"], ["serve", "no-model", "--port", "0"]])
def test_a_place_that_is_not_here_is_refused_before_anything_is_read(
    command: list[str], place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("omni.process.early.CAN_START", False)  # the process that is started ahead
    for given in (["--place", f"singer={place}"], ["--set", f"singer.place={place}"]):
        result = CliRunner().invoke(app, [*command, "--device", "cpu", *given])
        assert result.exit_code == 1
        assert "error: singer.place: 'cuda:77' does not exist here; there " in result.stderr
    file = tmp_path / "omni.toml"
    file.write_text(f'[singer]\nplace = "{place}"\n')
    result = CliRunner().invoke(app, [*command, "--device", "cpu", "--config", str(file)])
    assert f"error: {file}: singer.place: 'cuda:77' does not exist here; " in result.stderr
    # What overrides it counts, and the model is looked for.
    result = CliRunner().invoke(app, [*command, "--device", "cpu", "--config", str(file), "--place", "singer=cpu/2"])
    assert "does not exist here" not in result.stderr
    assert "no-model is not a local folder" in result.stderr


def test_the_place_of_a_pipeline_is_checked_too(echo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a weight is read, and an engine is started."""

    def elsewhere(pipeline: Pipeline) -> Pipeline:
        stages = [msgspec.structs.replace(each, place="cuda:77") for each in pipeline.stages]
        return msgspec.structs.replace(pipeline, stages=tuple(stages))

    def build(*arguments: object, **options: object) -> None:
        raise AssertionError("the front end is built")

    monkeypatch.setattr("omni.api.load.build_frontend", build)
    with pytest.raises(ConfigError, match=r"writer\.place: 'cuda:77' does not exist here"):
        Omni(echo_folder, device="cpu", plugins=echo_plugins(), pipeline=elsewhere)


def test_an_unknown_voice_is_refused_before_weights_are_read(
    echo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process, up to the engine, which would read them."""
    code = "import omni.api.load\ndef read(*given): raise SystemExit('the weights are read')\n"
    code += "omni.api.load.build_engine = read"
    command = [*program(at="omni.serve.run", code=code), "serve", str(echo_folder), "--device", "cpu", "--port", "0"]
    command += ["--voice", "alloy=nobody"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 1
    assert "--voice alloy: 'nobody' is not a voice of this model" in done.stderr

    def read(*given: object) -> None:
        raise PermissionError("the weights are read")

    # A known voice gets to the engine.
    monkeypatch.setattr("omni.api.load.build_engine", read)
    with pytest.raises(PermissionError, match="the weights are read"):
        AsyncOmni(
            echo_folder,
            device="cpu",
            plugins=echo_plugins(),
            overrides={**STRICT, "engine.process": "thread"},
            check_frontend=lambda frontend: Voices(frontend.voices, {"alloy": "low"}),
        )


@pytest.mark.parametrize("given", ["alloy", "=low", "alloy="])
def test_a_voice_without_a_name_is_refused(given: str) -> None:
    result = CliRunner().invoke(app, ["serve", "no-model", "--voice", given])
    assert (result.exit_code, "is not NAME=VOICE" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("overrides", "options", "words"),
    [
        ({}, {"voices": {"alloy": "nobody"}}, "--voice alloy: 'nobody' is not a voice of this model"),
        ({"frontend.media.strict": False}, {}, "frontend.media.strict: is not set"),
    ],
)
def test_settings_that_the_model_refuses_end_the_start(
    echo_folder: Path, overrides: dict[str, object], options: dict[str, object], words: str
) -> None:
    omni = echo_omni(echo_folder, **overrides)
    settings = msgspec.convert({"port": 0, **options}, ServeOptions)
    said: list[str] = []
    with bound(settings) as listener, pytest.raises(ConfigError, match=re.escape(words)):
        serve(omni, settings, listener, lambda: said.append("serving"))
    assert not said
    with pytest.raises(StageError, match="it is closed"):
        asyncio.run(omni.complete("hello"))


def test_voices_are_named_on_the_command_line() -> None:
    assert voice_table(["alloy=low", "aria=a=b"]) == {"alloy": "low", "aria": "a=b"}


def test_limits_are_set_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[ServeOptions] = []

    def bound(options: ServeOptions) -> None:
        given.append(options)
        raise ConfigError("here", "ends the test", "read its options")

    monkeypatch.setattr("omni.serve.run.bound", bound)
    limits = ["--limit", "max_sessions=3", "--limit", "stalled_seconds=2.5", "--max-requests", "7"]
    result = CliRunner().invoke(app, ["serve", "no-model", *limits])
    assert "ends the test" in result.stderr
    assert given == [ServeOptions(model_names=("no-model",), max_sessions=3, stalled_seconds=2.5, max_requests=7)]


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni.cli.serve._NEEDED", ("starlette", "no_such_package"))
    result = CliRunner().invoke(app, ["serve", "no-model"])
    assert result.exit_code == 1
    assert "no_such_package" in result.stderr
    assert "pip install 'omni-stages[serve]'" in result.stderr


def test_pieces_of_an_answer_do_not_wait_for_acknowledgements(echo_folder: Path) -> None:
    """Nagle's algorithm is off: it would hold pieces back for 40 ms."""
    with served(echo_omni(echo_folder)) as it, httpx.Client() as client:
        assert client.get(f"{it.url}/health").status_code == 200
        (connection,) = it.http.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
