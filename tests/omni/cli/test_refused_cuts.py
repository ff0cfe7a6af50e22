"""A cut that a stage's model or its places do not allow is refused by each way to open a model, before there is a process for a
rank and before a weight is read. The error names the setting, the problem with its numbers, and the remedy."""

import asyncio
from importlib.metadata import EntryPoint
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from omni import AsyncOmni, ConfigError, Omni
from omni.checkpoint import stream
from omni.cli import app
from omni.process.child import EngineProcess
from tests.support.entry_points import own_entry_points
from tests.support.plugins import plugins_of
from tests.support.tiny_text import write_text_model

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("installed")]


def places(count: int) -> str:
    return ",".join(["cpu", *(f"cpu/{number}" for number in range(2, count + 1))])


def cut(count: int, **settings: object) -> dict[str, object]:
    return {"text.place": places(count), **{f"text.{name}": value for name, value in settings.items()}}


WRONG: dict[str, tuple[str, dict[str, object], str]] = {
    "more ranges than layers": (
        "untied",
        cut(4, pipeline_parallel=4),
        "text.pipeline_parallel: is 4, and the model has 3 layers; use at most one layer range for each layer",
    ),
    "other sum": (
        "untied",
        cut(2, pipeline_parallel=2, pipeline_layers=[2, 2]),
        "text.pipeline_layers: is [2, 2]; give 2 numbers from 1 whose sum is the model's 3 layers, or leave it out",
    ),
    "other length": (
        "untied",
        cut(2, pipeline_parallel=2, pipeline_layers=[1, 1, 1]),
        "text.pipeline_layers: is [1, 1, 1]; give 2 numbers from 1 whose sum is the model's 3 layers, or leave it out",
    ),
    "a range of no layer": (
        "untied",
        cut(2, pipeline_parallel=2, pipeline_layers=[3, 0]),
        "text.pipeline_layers: is [3, 0]; give 2 numbers from 1 whose sum is the model's 3 layers, or leave it out",
    ),
    "layers of one range": (
        "untied",
        cut(2, tensor_parallel=2, pipeline_layers=[1, 2]),
        "text.pipeline_layers: is given, and text.pipeline_parallel is 1: all layers are in one place; "
        "set text.pipeline_parallel to the number of layer ranges, or leave it out",
    ),
    "no experts": (
        "untied",
        cut(2, tensor_parallel=2, expert_parallel=True),
        "text.expert_parallel: is true, and the model of stage 'text' has no experts; leave it out",
    ),
    "experts not divided": (
        "moe",
        cut(3, tensor_parallel=3, expert_parallel=True),
        "text.expert_parallel: is true, and text.tensor_parallel=3 does not divide the 8 experts of a layer; "
        "set text.tensor_parallel to a divisor of 8, or leave text.expert_parallel out",
    ),
    "experts of one rank": (
        "moe",
        cut(2, pipeline_parallel=2, expert_parallel=True),
        "text.expert_parallel: is true, and text.tensor_parallel is 1: there is one rank, which holds all experts; "
        "set text.tensor_parallel to the number of ranks, or leave it out",
    ),
    "too few places": (
        "untied",
        cut(3, tensor_parallel=2, pipeline_parallel=2),
        "text.place: cpu,cpu/2,cpu/3 are 3 places, and text.tensor_parallel=2 and text.pipeline_parallel=2 takes 4 places, "
        'one for each rank; name so many, such as "cuda:0,cuda:1,cuda:2,cuda:3"',
    ),
    "too many places": (
        "untied",
        cut(3, pipeline_parallel=2),
        "text.place: cpu,cpu/2,cpu/3 are 3 places, and text.pipeline_parallel=2 takes 2 places, one for each rank; "
        'name so many, such as "cuda:0,cuda:1"',
    ),
}


@pytest.fixture
def points() -> list[EntryPoint]:
    return own_entry_points()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {kind: tmp_path_factory.mktemp(kind) for kind in ("untied", "moe")}
    for kind, folder in made.items():
        write_text_model(folder, kind)
    return made


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process or a read fails the test."""

    def begun(*_: object, **__: object) -> None:
        raise AssertionError("a process is started, or a weight is read")

    monkeypatch.setattr(EngineProcess, "__init__", begun)
    monkeypatch.setattr(stream, "_read", begun)
    monkeypatch.setattr(stream, "copy_extent", begun)


def by_cli(command: str, folder: Path, settings: dict[str, object]) -> str:
    given = {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in settings.items()
    }
    words = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    prompt = ["hello"] if command == "run" else []
    result = CliRunner().invoke(app, [command, str(folder), *prompt, "--device", "cpu", *words])
    assert result.exit_code not in (0, None), result.output
    return " ".join(result.output.split())


def by_omni(folder: Path, settings: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        Omni(folder, device="cpu", plugins=plugins_of("ar", "local", "shm", "text"), overrides=settings)
    return str(caught.value)


def by_async_omni(folder: Path, settings: dict[str, object]) -> str:
    async def opened() -> None:
        async with AsyncOmni(
            folder, device="cpu", plugins=plugins_of("ar", "local", "shm", "text"), overrides=settings
        ):
            raise AssertionError("it is opened")

    with pytest.raises(ConfigError) as caught:
        asyncio.run(opened())
    return str(caught.value)


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_cut_is_refused_by_omni(wrong: str, load_format: str, folders: dict[str, Path]) -> None:
    kind, settings, text = WRONG[wrong]
    assert by_omni(folders[kind], {**settings, "engine.load_format": load_format}) == text


@pytest.mark.parametrize("wrong", ["more ranges than layers", "no experts", "too few places"])
def test_async_omni_refuses_the_cut(wrong: str, folders: dict[str, Path]) -> None:
    kind, settings, text = WRONG[wrong]
    assert by_async_omni(folders[kind], settings) == text


@pytest.mark.parametrize("command", ["explain", "run", "serve"])
@pytest.mark.parametrize("wrong", WRONG)
def test_commands_refuse_the_cut(wrong: str, command: str, folders: dict[str, Path]) -> None:
    kind, settings, text = WRONG[wrong]
    assert text in by_cli(command, folders[kind], settings)


def test_doctor_reports_the_refused_cut(folders: dict[str, Path]) -> None:
    kind, settings, _ = WRONG["more ranges than layers"]
    assert "text.pipeline_parallel: is 4, and the model has 3 layers" in by_cli("doctor", folders[kind], settings)
    kind, settings, _ = WRONG["too few places"]
    assert "text.place: cpu,cpu/2,cpu/3 are 3 places" in by_cli("doctor", folders[kind], settings)
