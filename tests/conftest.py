"""Tests run offline, on one thread, and on the CPU unless they are marked `gpu`."""

import atexit
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace

# Read when transformers is imported, so it is set before anything imports it.
os.environ["HF_HUB_OFFLINE"] = "1"
# Programs that tests start have one thread too: on cores that tests share, two threads take twice the time or more. OpenBLAS is
# numpy's, rayon tokenizers'.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
# Each HTTP client would load 150 certificates of authorities, in 20 ms. Tests are offline: the one here signs nothing.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "support" / "authority.pem")

import pytest
import torch

if not torch.cuda.is_available():
    # Read when triton is imported: without a device, kernels run under its interpreter.
    os.environ["TRITON_INTERPRET"] = "1"

from hypothesis import settings
from hypothesis.internal.conjecture import engine
from transformers import PreTrainedConfig

from omni.api import load
from omni.testing import no_retries, planted_faults
from tests.fork_server import ForkServer
from tests.process_state import changes, forget_strangers, process_state
from tests.quick_interpreter import quicken
from tests.support.browser import chromium

# The order of a reduction follows the number of threads.
torch.set_num_threads(1)

# While a config with other configs is made, each is written out for an error that nobody sees, which takes most of the time.
PreTrainedConfig.__repr__ = object.__repr__  # type: ignore[method-assign]

# A shared machine makes single examples slow now and then; that is not a failure.
settings.register_profile("omni", deadline=None, print_blob=True)
settings.load_profile("omni")

# What fails is made smaller for as long; 300 seconds are the default, and may be replaced (so it says).
engine.MAX_SHRINKING_SECONDS = 20

_SLOW_SECONDS = 7200.0
"""Limit of a test that is marked `slow`, if it has none of its own; of others: `timeout` in pyproject.toml."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--engine", choices=("thread", "process"), help="where engines run if a test does not say")


def pytest_configure(config: pytest.Config) -> None:
    """Applies `--engine`.

    Processes that tests start inherit the signals that this one ignores: SIGINT, where a shell runs it in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    engine = config.getoption("--engine")
    if engine is not None:
        patched = lambda options, *_: (engine if options.process == "auto" else options.process) == "process"  # noqa: E731
        pytest.MonkeyPatch().setattr(load, "runs_in_process", patched)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Takes what is imported and collected out of the garbage collector's later work, which would take most of a second each time:
    it lasts to the end. Then pytest collects twice, and the interpreter, which alone needs all objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        atexit.register(gc.unfreeze)
        quicken()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives tests marked `slow` their time. Skips those marked `gpu` where there is no CUDA device, and those marked `browser`
    where there is no browser. Long files come first, so that workers end at nearly the same time."""
    long = {item.path for item in items if item.get_closest_marker("thorough")}
    items.sort(key=lambda item: item.path not in long)
    if chromium() is None:
        no_browser = pytest.mark.skip(reason="no Chromium: run make browser, or set OMNI_CHROMIUM to its path")
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(no_browser)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_SLOW_SECONDS))
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    yield from _nothing_ran_again(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    yield from _nothing_ran_again(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    yield from _nothing_ran_again(item)


def _nothing_ran_again(item: pytest.Item) -> Generator[None]:
    """Whatever a test makes, be it a worker, an engine or an `Omni`: no stage of it may have run a failed batch again, unless the
    test is marked `plants_faults`. Results would be right, and what failed would be found by nobody."""
    with planted_faults() if item.get_closest_marker("plants_faults") else no_retries():
        yield


@pytest.fixture(scope="module", autouse=True)
def process_stays(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a file changes of the process, the files after it would find: it has to be as before."""
    before = process_state()
    yield
    forget_strangers(tmp_path_factory.getbasetemp())
    found = changes(before, process_state())
    assert not found, f"after the tests of {request.path.name}, the process is not as before:\n" + "\n".join(found)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer | None]:
    """None where processes cannot be forked: those that use CUDA."""
    if sys.platform != "linux" or torch.cuda.is_available():
        yield None
        return
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def forked_processes(fork_server: ForkServer | None) -> Iterator[None]:
    """For a file of tests: the processes of engines, and of connectors' ends, start without imports."""
    with pytest.MonkeyPatch.context() as patch:
        if fork_server is not None:
            forking = SimpleNamespace(Popen=fork_server.popen, DEVNULL=subprocess.DEVNULL)
            patch.setattr("omni.process.child.subprocess", forking)
            patch.setattr("omni.testing.connectors.ends.subprocess", forking)
        yield
