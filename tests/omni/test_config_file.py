"""TOML files of settings: their contents, and the order of precedence."""

import asyncio
from pathlib import Path

import msgspec
import pytest
import torch
from typer.testing import CliRunner

from omni import AsyncOmni, ConfigError, Omni
from omni.api.settings import layers_of
from omni.cli import app
from omni.config import SettingsLayer, read_config
from omni.engine import EngineOptions, engine_options
from omni.frontend.options import FrontendOptions, frontend_options
from omni.media.options import MediaOptions
from tests.support.echo_family import echo_model, echo_plugins
from tests.support.echo_plugin import POINT
from tests.support.entry_points import own_entry_points


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni.plugin.manager.entry_points", lambda group: [POINT, *own_entry_points("local")])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "omni.toml"


def test_tables_are_read_as_they_are(file: Path) -> None:
    file.write_text('[engine]\ndevice = "cpu"\n[thinker]\nblock_size = 4\n[thinker.sampling]\nstop_token_ids = [1]\n')
    tables = {"engine": {"device": "cpu"}, "thinker": {"block_size": 4, "sampling": {"stop_token_ids": [1]}}}
    assert read_config(file) == SettingsLayer(str(file), tables, file=True)


def test_a_file_in_the_home_folder_is_found(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file.write_text("")
    assert read_config("~/omni.toml").values == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[thinker]\nblock_size = 4\nmax_num_seqs 3\n", r"is not valid TOML: .*line 3.*; correct that line"),
        (b"[thinker]\n[thinker]\n", r"is not valid TOML: .*line 2"),
        (b"[a]\nb = '\xff'\n", "is not UTF-8 .*; save it as UTF-8 text"),
        (
            b'device = "cpu"\n',
            r": device: is outside of any table; write it below the name of its stage, or below \[engine\]",
        ),
    ],
)
def test_an_invalid_settings_file_is_refused_by_name(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_config(file)
    assert str(caught.value).startswith(f"{file}: ")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone.toml: cannot be read \(No such file or directory\); name a TOML file"):
        read_config(tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\)"):
        read_config(tmp_path)


def test_the_engine_is_set_like_a_stage(file: Path) -> None:
    file.write_text('[engine]\nmemory_bytes = 1_000_000\ndtype = "bfloat16"\nmax_active_requests = 3\n')
    overrides = {"engine.max_active_requests": "4", "engine.memory_bytes": "none", "writer.speed": 1}
    layers = layers_of(config=file, overrides=overrides, dtype=torch.float16, load_format="dummy")
    options, settings = engine_options(layers)
    assert options == EngineOptions(dtype="float16", load_format="dummy", max_active_requests=4)
    found = {setting.path.removeprefix("engine."): (setting.value, setting.origin) for setting in settings}
    defaults = {name: (value, "default") for name, value in msgspec.structs.asdict(EngineOptions()).items()}
    assert found == defaults | {
        "dtype": ("float16", "argument"),
        "load_format": ("dummy", "argument"),
        "memory_bytes": (None, "overrides"),
        "max_active_requests": (4, "overrides"),
    }


def test_a_file_and_overrides_set_options_below_frontend(file: Path) -> None:
    file.write_text("[frontend.media]\nstrict = true\n[engine]\nmax_waiting_requests = 3\n")
    options, settings = frontend_options(layers_of(config=file))
    assert options == FrontendOptions(media=MediaOptions(strict=True))
    assert {setting.path: setting.origin for setting in settings}["frontend.media.strict"] == str(file)
    overridden, _ = frontend_options(layers_of(config=file, overrides={"frontend.media.strict": False}))
    assert overridden == FrontendOptions()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return echo_model(tmp_path)


def tokens_per_tick(omni: Omni | AsyncOmni) -> object:
    return msgspec.structs.asdict(omni.pipeline.stage("writer").options)["tokens_per_tick"]


def test_a_model_is_loaded_with_a_file(model: Path, file: Path) -> None:
    file.write_text('[engine]\ndevice = "cpu"\n[writer]\ntokens_per_tick = 3\n')
    with Omni(model, config=file, plugins=echo_plugins()) as omni:
        assert tokens_per_tick(omni) == 3
        assert omni.generate("hello", modalities=["text"], stream=False).text == "hello"
    command = ["run", str(model), "hello", "--modalities", "text", "--config", str(file)]
    assert CliRunner().invoke(app, command).stdout == "hello\n"
    with Omni(model, config=file, overrides={"writer.tokens_per_tick": 5}, plugins=echo_plugins()) as omni:
        assert tokens_per_tick(omni) == 5


def test_the_asynchronous_interface_takes_a_file_too(model: Path, file: Path) -> None:
    file.write_text('[engine]\ndevice = "cpu"\n[writer]\ntokens_per_tick = 3\n')

    async def load() -> object:
        async with await asyncio.to_thread(AsyncOmni, model, config=str(file), plugins=echo_plugins()) as omni:
            return tokens_per_tick(omni)

    assert asyncio.run(load()) == 3


def test_arguments_go_over_the_file(model: Path, file: Path) -> None:
    file.write_text('[engine]\ndevice = "tpu"\ndtype = "float8"\n')
    with pytest.raises(ConfigError, match="device: 'tpu' is not a device"):
        Omni(model, config=file, plugins=echo_plugins())
    with pytest.raises(ConfigError, match="dtype: 'float8' is not supported"):
        Omni(model, config=file, device="cpu", plugins=echo_plugins())
    with Omni(model, config=file, device="cpu", dtype="float32", plugins=echo_plugins()) as omni:
        assert omni.generate("hello", modalities=["text"], stream=False).text == "hello"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "[singr]\ntokens_per_tick = 1\n",
            "singr: there is no stage 'singr'; use one of writer, singer, edges, engine",
        ),
        (
            "[writer]\nspeed = 1\n",
            "writer.speed: there is no option 'speed'; use one of tokens_per_tick, max_length, sampling",
        ),
        ("[writer.sampling]\ntop_k = true\n", "writer.sampling.top_k: True does not fit"),
        ("[engine]\nmemory = 1\n", "engine.memory: there is no option 'memory'; use one of device, process, dtype"),
        ("[engine]\nmemory_bytes = 0\n", "engine.memory_bytes: memory_bytes must be at least 1"),
        ("[engine]\nrestart_seconds = nan\n", "engine.restart_seconds: restart_seconds must be at least 0"),
        ("[engine]\nturn_seconds = inf\n", "engine.turn_seconds: turn_seconds must be at least 0.1, and below 2^63"),
    ],
)
def test_the_command_line_names_file_and_path(model: Path, file: Path, content: str, message: str) -> None:
    file.write_text(content)
    for command in (["run", str(model), "hello"], ["explain", str(model)]):
        result = CliRunner().invoke(app, [*command, "--config", str(file), "--device", "cpu"])
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(f"error: {file}: {message}")
