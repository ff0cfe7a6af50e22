"""A forked child gets an error, since the model is its parent's. It never hangs, and takes no resource of the parent."""

import asyncio
import gc
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from omni import AsyncOmni, Omni
from omni.api import owner
from omni.api.owner import adapt_to_fork
from omni.errors import ForkError
from tests.support.echo_family import echo_plugins, eventually
from tests.support.echo_omni import ENDLESS, opened, run_program
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@pytest.fixture
def omni(model: Path) -> Iterator[Omni]:
    with opened(model) as omni:
        yield omni
        assert omni.generate("the parent lives", stream=False).text == "the parent lives"


def in_child(action: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> str:
    """The report of a forked child: `"fine"`, or its traceback. Fails if it does not end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "fine"
        try:
            action()
        except BaseException:
            said = traceback.format_exc()
        os.write(writing, said.encode()[-60_000:])
        os._exit(0)
    os.close(writing)
    deadline = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
            raise AssertionError("the child hangs")
        time.sleep(0.005)
    with os.fdopen(reading) as pipe:
        return pipe.read()


def refused(action: Callable[[], object]) -> Callable[[], None]:
    def refuses() -> None:
        with pytest.raises(ForkError) as raised:
            action()
        assert "forked" in str(raised.value)
        assert 'start method "spawn", or load the model in it' in str(raised.value)

    return refuses


ENTRIES: dict[str, Callable[[Omni], object]] = {
    "generate": lambda omni: omni.generate("hello"),
    "results": lambda omni: omni.generate(["a", "b"], stream=False),
    "usage": lambda omni: omni.usage(),
    "counters": lambda omni: omni.counters(),
    "idle": lambda omni: omni.idle,
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_names_fork(omni: Omni, entry: str) -> None:
    assert in_child(refused(lambda: ENTRIES[entry](omni))) == "fine"


def test_a_stream_of_the_parent(omni: Omni) -> None:
    stream = omni.generate("abc", sampling=ENDLESS)
    next(stream)
    assert in_child(refused(lambda: next(stream))) == "fine"
    assert in_child(stream.close) == "fine"
    assert next(stream).index == 0, "it goes on in the parent"
    stream.close()


def test_close_and_finalizers_are_quiet(model: Path) -> None:
    omni = opened(model)
    streams = [omni.generate("abc", sampling=ENDLESS)]

    def let_go() -> None:
        omni.close()
        omni.close()
        streams.clear()
        gc.collect()
        with omni:
            pass

    assert in_child(let_go) == "fine"
    assert next(streams[0]).index == 0
    omni.close()


def test_the_asynchronous_interface(model: Path) -> None:
    omni = AsyncOmni(model, device="cpu", plugins=echo_plugins())

    async def ask() -> None:
        with pytest.raises(ForkError, match="spawn"):
            omni.generate("hello")
        with pytest.raises(ForkError, match="spawn"):
            await omni.complete("hello")
        await omni.close()

    assert in_child(lambda: asyncio.run(ask())) == "fine"
    assert asyncio.run(omni.complete("hello")).text == "hello"
    asyncio.run(omni.close())


def test_many_forks_beside_busy_threads(omni: Omni) -> None:
    """Whatever locks the parent's threads hold as it forks."""
    streams = [omni.generate("abc", sampling=ENDLESS) for _ in range(3)]
    for _ in range(15):
        assert in_child(refused(lambda: omni.generate("hello"))) == "fine"
    for stream in streams:
        stream.close()
    assert eventually(lambda: omni.idle)


def test_another_model_in_the_child(omni: Omni, model: Path) -> None:
    def load() -> None:
        with opened(model) as own:
            assert own.generate("in the child", stream=False).text == "in the child"

    assert in_child(load) == "fine"


def test_a_child_that_ends_as_programs_do(model: Path) -> None:
    """With its atexit functions: the parent's model is not closed, and its timeline not written, by the child."""
    program = f"""
from tests.support.echo_omni import opened
omni = opened({str(model)!r})
stream = omni.generate("hello")
child = os.fork()
if child == 0:
    sys.exit(7)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), omni.generate("hello", stream=False).text)
"""
    ran = run_program(program, "-W", "ignore")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "7 hello\n", "")


def test_another_model_in_the_child_of_a_parent_whose_torch_has_threads(model: Path) -> None:
    """OpenMP's threads stay with the parent: torch would wait for them for ever."""
    program = f"""
import torch
from tests.support.echo_omni import opened
torch.set_num_threads(2)
assert torch.ones(10_000_000).mul(2).sum() == 20_000_000
child = os.fork()
if child == 0:
    with opened({str(model)!r}) as omni:
        assert omni.generate("hello", stream=False).text == "hello"
        assert torch.ones(10_000_000).mul(2).sum() == 20_000_000
    os._exit(7)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""
    ran = run_program(program, "-W", "ignore")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "7\n", "")


@pytest.mark.parametrize("forked", [False, True])
def test_a_model_in_a_forked_child_computes_with_one_thread(forked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    monkeypatch.setattr(owner._FORKS, "forked", forked)
    adapt_to_fork(torch.device("cpu"))
    assert numbers == [1] * forked


def test_no_cuda_in_the_child_of_a_process_that_used_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)

    def load() -> None:
        adapt_to_fork(torch.device("cpu"))
        with pytest.raises(ForkError, match='start method "spawn"'):
            adapt_to_fork(torch.device("cuda", 0))

    assert in_child(load) == "fine"
    adapt_to_fork(torch.device("cuda", 0))
