"""Plugins with one fault each (`tests.omni.broken_plugins`): the error names it, and other requests continue."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from omni import Omni, SamplingParams
from omni.errors import ConfigError, OmniError, StageError
from omni.pipeline import Pipeline
from omni.plugin.manager import Plugins, load_plugins
from tests.examples.plain_speech import write_tiny
from tests.omni.broken_plugins.at_boundary import (
    BOXES,
    CLOSED_BOX,
    MOVED,
    RAISED,
    RAISED_AT_LOAD,
    READ,
    RESTLESS,
    TENSORS,
)
from tests.omni.broken_plugins.at_edge import OPENING, TRAVEL, UNKNOWN
from tests.omni.broken_plugins.at_graph import GRAPH
from tests.omni.broken_plugins.at_load import LOAD
from tests.omni.broken_plugins.at_model import RETURNS, WEIGHTS
from tests.omni.broken_plugins.at_open import OPEN
from tests.omni.broken_plugins.at_request import ADAPTERS, FRONT, MESSAGES, REPORTS, SOUNDS, WORKERS
from tests.omni.broken_plugins.at_values import INTERRUPTS, UNSENDABLE, VALUES, VALUES_REPORTED
from tests.omni.broken_plugins.fault import Fault
from tests.omni.broken_plugins.installed import Installed, installed
from tests.support.echo_family import eventually
from tests.support.entry_points import SOURCE_ROOTS, own_entry_points
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiers import SLOW, few

pytestmark = [pytest.mark.plants_faults, pytest.mark.thorough, pytest.mark.usefixtures("forked_processes")]

T = TypeVar("T")

ENGINES = few(1, ["thread", "process"], pytest.mark.slow)
"""Of most faults; those of `IN_PROCESS` are planted in a process by default too."""
IN_PROCESS = (
    *("an input of a struct made on the spot", "a send that exits", "a tick that raises"),
    *("samples that fit into no memory", "an exception with a class of its own of a step"),
)
"""One of those that messages between the processes cannot carry (`tests/omni/process/test_odd_messages.py` has more), one that
would end a process, and one of each way out of a stage."""


def by_name(*tables: tuple[Fault, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fault", [f for table in tables for f in table], ids=lambda fault: fault.name)


@pytest.fixture
def plugin(fault: Fault, tmp_path: Path) -> Iterator[Installed]:
    changes = {fault.file: (fault.old, fault.new)}
    if fault.also is not None:
        file, old, new = fault.also
        changes[file] = old, new
    with installed(fault.package, changes, tmp_path / "site") as plugin:
        yield plugin


@pytest.fixture(scope="session")
def speech_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain_tts") / "model"
    write_tiny(folder)
    return folder


@pytest.fixture
def model(tmp_path: Path, speech_model: Path, fault: Fault) -> Path:
    if fault.package == "plain_tts":
        return speech_model
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "talk"}))
    return folder


def within(call: Callable[[], T]) -> T:
    """The result or the error of a call, in time: a hang fails the test instead of ending the run."""
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


def loaded(plugin: Installed) -> Plugins:
    return load_plugins([*plugin.points, *own_entry_points("ar", "vocoder", "local", "shm")])


@by_name(OPEN, GRAPH, OPENING, WEIGHTS, RAISED_AT_LOAD, (CLOSED_BOX,))
def test_a_model_that_is_not_opened(fault: Fault, model: Path, plugin: Installed) -> None:
    plugins = loaded(plugin)
    with pytest.raises(fault.kind) as caught:
        within(lambda: Omni(model, device="cpu", plugins=plugins, overrides=dict(fault.settings)))
    assert type(caught.value) is fault.kind
    check(fault, plugin, caught.value)


TWICE, MISSPELLED = (
    next(f for f in GRAPH if f.name == name)
    for name in ("two edges between the same stages", "a connector that a setting misspells")
)


@by_name((TWICE,))
def test_equal_parts_are_refused_before_a_change_merges_them(fault: Fault, model: Path, plugin: Installed) -> None:
    with pytest.raises(ConfigError, match="'writer->singer' appears 2 times"):
        Omni(model, device="cpu", plugins=loaded(plugin), pipeline=lambda pipeline: pipeline.extended())


@by_name((MISSPELLED,))
def test_a_fault_of_the_user_does_not_blame_the_plugin(fault: Fault, model: Path, plugin: Installed) -> None:
    def doubled(pipeline: Pipeline) -> Pipeline:
        return msgspec.structs.replace(pipeline, outputs=pipeline.outputs * 2)

    with pytest.raises(OmniError) as misspelled:
        Omni(model, device="cpu", plugins=loaded(plugin), overrides=dict(fault.settings))
    with pytest.raises(ConfigError, match=r"'text' appears 2 times \(.*test_broken_plugins.py") as twice:
        Omni(model, device="cpu", plugins=loaded(plugin), pipeline=doubled)
    for caught in (misspelled, twice):
        assert plugin.distribution not in str(caught.value)


def answered(omni: Omni, *, audio: bool) -> None:
    """A request of another user is answered: with the text only, or with its sound."""
    result = within(lambda: omni.generate("fine", modalities=("text", "audio") if audio else ("text",), stream=False))
    assert result.text == "fine"
    assert (result.audio is not None) == audio


@pytest.mark.parametrize("engine", ENGINES)
@by_name(
    *(ADAPTERS, FRONT, WORKERS, SOUNDS, MESSAGES, TRAVEL, UNKNOWN, VALUES, INTERRUPTS),
    *(BOXES, MOVED, READ, TENSORS, RAISED),
)
def test_a_request_that_fails(fault: Fault, model: Path, plugin: Installed, engine: str) -> None:
    fail_one(fault, model, plugin, engine)


PLANTED = (
    *ADAPTERS,
    *FRONT,
    *WORKERS,
    *SOUNDS,
    *TRAVEL,
    *UNKNOWN,
    *VALUES,
    *INTERRUPTS,
    *BOXES,
    *READ,
    *TENSORS,
    *RAISED,
)


@by_name(tuple(each for each in PLANTED if each.name in IN_PROCESS), UNSENDABLE)
def test_a_request_that_fails_in_a_process(fault: Fault, model: Path, plugin: Installed) -> None:
    fail_one(fault, model, plugin, "process")


def fail_one(fault: Fault, model: Path, plugin: Installed, engine: str) -> None:
    plugins = loaded(plugin)
    with Omni(model, device="cpu", plugins=plugins, overrides={"engine.process": engine}) as omni:
        for _ in range(1 if fault.at == "stage" else 2):
            with pytest.raises(fault.kind) as caught:
                within(lambda: omni.generate(fault.bad, stream=False))
            check(fault, plugin, caught.value)
            answered(omni, audio=False)
        if "!" in fault.new:
            answered(omni, audio=True)
        if fault.at == "stage":
            with pytest.raises(StageError, match=f"stage {fault.closed!r} .*is closed after a fault"):
                within(lambda: omni.generate("again", stream=False))
            answered(omni, audio=False)
        assert eventually(lambda: omni.idle)
        assert not any(count for usage in omni.usage().values() for count in usage.values())


@pytest.mark.parametrize("engine", ["thread", "process"])
@by_name(RESTLESS)
def test_close_ends_though_a_stage_is_never_done(
    fault: Fault, model: Path, plugin: Installed, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names it."""
    omni = Omni(model, device="cpu", plugins=loaded(plugin), overrides={"engine.process": engine})
    answered(omni, audio=True)
    within(omni.close)
    problem = "stage 'singer' returns True after every tick: return False if there was nothing to do"
    assert f"{problem} (plugin {plugin.distribution}, {plugin.place})" in caplog.text


SILENT = Fault(
    "a tick that returns None",
    "request",
    StageError,
    "stages.py",
    "class Singer(Worker):\n",
    "class Singer(Worker):\n    def tick(self):\n        super().tick()\n\n",
    (),
)


@by_name((SILENT,))
def test_a_worker_whose_tick_returns_nothing_works(fault: Fault, model: Path, plugin: Installed) -> None:
    with Omni(model, device="cpu", plugins=loaded(plugin)) as omni:
        answered(omni, audio=True)


REPLICA = Fault(
    "a replica that is closed",
    "stage",
    StageError,
    "stages.py",
    "class Singer(Worker):\n",
    "class Singer(Worker):\n    def advance(self):\n"
    "        if any('!' in request.letters for request in self.requests.values()):\n"
    "            raise ValueError('loud')  # here\n"
    "        return super().advance()\n\n",
    ("stage 'singer' failed while running: ValueError: loud",),
    closed="singer",
)
REPLICAS: dict[str, object] = {"singer.place": "cpu/2,cpu/3", "edges.writer-singer.connector": "shm"}


@pytest.mark.parametrize(
    "places", few(1, [{}, {"writer.place": "cpu/2,cpu/3"}], pytest.mark.slow), ids=["singers", "writers too"]
)
@by_name((REPLICA,))
def test_a_closed_replica_gets_no_requests(
    fault: Fault, model: Path, plugin: Installed, places: dict[str, object]
) -> None:
    """The others do, as long as one is open."""
    with Omni(model, device="cpu", plugins=loaded(plugin), overrides=REPLICAS | places) as omni:
        for others in (3, 0):
            with pytest.raises(StageError) as caught:
                within(lambda: omni.generate("break!", stream=False))
            check(fault, plugin, caught.value)
            for _ in range(others):
                answered(omni, audio=True)
        with pytest.raises(StageError, match=r"stage 'singer' .*is closed after a fault"):
            within(lambda: omni.generate("fine", stream=False))
        answered(omni, audio=False)
        assert eventually(lambda: omni.idle)


@by_name(RETURNS)
def test_a_model_whose_methods_return_invalid_values(fault: Fault, model: Path, plugin: Installed) -> None:
    """Every request fails, since they share the model; the engine continues, and holds no memory."""
    with Omni(model, device="cpu", plugins=loaded(plugin)) as omni:
        for _ in range(2):
            with pytest.raises(StageError) as caught:
                within(
                    lambda: omni.generate(
                        "hello", stream=False, sampling=SamplingParams(max_tokens=12, ignore_eos=True)
                    )
                )
            check(fault, plugin, caught.value)
        assert eventually(lambda: omni.idle)


@pytest.mark.parametrize("engine", ENGINES)
@by_name(REPORTS, VALUES_REPORTED)
def test_a_stage_that_cannot_report(fault: Fault, model: Path, plugin: Installed, engine: str) -> None:
    """The call that asks for it fails; requests do not."""
    with Omni(model, device="cpu", plugins=loaded(plugin), overrides={"engine.process": engine}) as omni:
        for _ in range(2):
            answered(omni, audio=True)
            with pytest.raises(StageError) as caught:
                within(omni.usage if "usage" in fault.name else omni.counters)
            check(fault, plugin, caught.value)
        assert eventually(lambda: omni.idle)


IMPORTS_TORCH = "its entry module imports torch"
COMMAND = "from omni.cli import main; main()"


@pytest.mark.parametrize("command", few(1, ["plugins", "doctor"], SLOW))
def test_commands_report_an_entry_module_that_imports_torch(command: str, tmp_path: Path) -> None:
    change = {"plugin.py": ("from omni import hookimpl\n", "import torch\n\nfrom omni import hookimpl\n")}
    with installed("plain_talk", change, tmp_path / "site"):
        arguments = [sys.executable, "-c", COMMAND, command]
        paths = os.pathsep.join([str(tmp_path / "site"), *SOURCE_ROOTS])
        result = subprocess.run(
            arguments, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )
    printed = result.stdout + result.stderr
    assert IMPORTS_TORCH in printed
    assert "import it where entries point" in printed
    assert "talk" in printed.partition(IMPORTS_TORCH)[0].splitlines()[-1]
