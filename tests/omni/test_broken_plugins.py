"""Plugins with one fault each (`tests.omni.broken_plugins`): the error names it, and nobody else is harmed."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from omni import Omni
from omni.errors import OmniError, StageError
from omni.plugin.manager import load_plugins
from tests.omni.broken_plugins.at_load import LOAD
from tests.omni.broken_plugins.at_open import OPEN
from tests.omni.broken_plugins.at_request import ADAPTERS, FRONT, WORKERS
from tests.omni.broken_plugins.fault import Fault
from tests.omni.broken_plugins.installed import Installed, installed
from tests.support.echo_family import eventually
from tests.support.entry_points import own_entry_points
from tests.support.patience import PATIENCE_SECONDS

T = TypeVar("T")

ENGINES = ("thread", "process")


def by_name(*tables: tuple[Fault, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fault", [f for table in tables for f in table], ids=lambda fault: fault.name)


@pytest.fixture
def plugin(fault: Fault, tmp_path: Path) -> Iterator[Installed]:
    with installed(fault.package, {fault.file: (fault.old, fault.new)}, tmp_path / "site") as plugin:
        yield plugin


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "talk"}))
    return folder


def within(call: Callable[[], T]) -> T:
    """What a call returns or raises, in time: a hang fails the test instead of ending the run."""
    outcome: list[T | BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert outcome, "it hangs"
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def check(fault: Fault, plugin: Installed, error: BaseException | str | None) -> None:
    message = str(error)
    for part in (*fault.says, plugin.place):
        assert part in message, f"\n{message}\nlacks\n{part}"
    if plugin.place:
        assert f"(plugin {plugin.distribution}, {plugin.place})" in message
    assert "download the whole" not in message


@by_name(LOAD)
def test_a_plugin_that_is_not_loaded(fault: Fault, tmp_path: Path) -> None:
    with installed(fault.package, {fault.file: (fault.old, fault.new)}, tmp_path / "site") as plugin:
        plugins = load_plugins([*plugin.points, *own_entry_points("local")])
    good, bad = plugins.records
    assert good.error is None
    assert (bad.name, bad.distribution) == (fault.package, plugin.distribution)
    check(fault, plugin, bad.error)
    assert plugins.connectors["local"].name == "local"
    with pytest.raises(OmniError, match=f"failed to load: {fault.package}"):
        plugins.families["talk"]


@by_name(OPEN)
def test_a_model_that_is_not_opened(fault: Fault, plugin: Installed, model: Path) -> None:
    plugins = load_plugins([*plugin.points, *own_entry_points("local", "shm")])
    with pytest.raises(fault.kind) as caught:
        within(lambda: Omni(model, device="cpu", plugins=plugins))
    assert type(caught.value) is fault.kind
    check(fault, plugin, caught.value)


def answered(omni: Omni, *, audio: bool) -> None:
    """A request of another user is answered: with the text only, or with its sound."""
    result = within(lambda: omni.generate("fine", modalities=("text", "audio") if audio else ("text",), stream=False))
    assert result.text == "fine"
    assert (result.audio is not None) == audio


@pytest.mark.parametrize("engine", ENGINES)
@by_name(ADAPTERS, FRONT, WORKERS)
def test_a_request_that_fails(fault: Fault, plugin: Installed, model: Path, engine: str) -> None:
    plugins = load_plugins([*plugin.points, *own_entry_points("local", "shm")])
    with Omni(model, device="cpu", plugins=plugins, overrides={"engine.process": engine}) as omni:
        for _ in range(1 if fault.at == "stage" else 2):
            with pytest.raises(fault.kind) as caught:
                within(lambda: omni.generate(fault.bad, stream=False))
            check(fault, plugin, caught.value)
            answered(omni, audio=False)
        if "!" in fault.new:
            answered(omni, audio=True)
        if fault.at == "stage":
            with pytest.raises(StageError, match=f"stage {fault.closed!r} .*is closed since a fault"):
                within(lambda: omni.generate("again", stream=False))
            answered(omni, audio=False)
        assert eventually(lambda: omni.idle)
        assert not any(count for usage in omni.usage().values() for count in usage.values())
