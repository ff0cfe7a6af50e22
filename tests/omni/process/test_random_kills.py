"""Processes are killed at random moments: every request has a result or an error, and no resource of lost ones is left."""

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni import Omni, OmniError
from tests.omni.process.engines import (
    OTHER_SINGER,
    SINGER,
    WRITER,
    assert_answers,
    children,
    descriptors,
    group_of,
    opened_apart,
    pids_of,
    shared_mappings,
)
from tests.support.echo_family import eventually
from tests.support.echo_omni import assert_nothing_held
from tests.support.entry_points import SOURCE_ROOTS
from tests.support.patience import PATIENCE_SECONDS
from tests.support.resources import open_files
from tests.support.tiers import SLOW, few

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]
REQUESTS = 16


@pytest.fixture(scope="module")
def omni(model: Path) -> Iterator[Omni]:
    """For all kills of engines, so that what each leaves adds up."""
    gc.collect()
    before = children(), open_files(), threading.active_count()
    omni = opened_apart(model, {"engine.restarts": 1000}, f"{SINGER},{OTHER_SINGER}")
    try:
        assert_answers(omni)
        yield omni
    finally:
        omni.close()
    del omni
    gc.collect()
    assert eventually(lambda: (children(), open_files(), threading.active_count()) == before)


def _ask(omni: Omni, prompt: str, modalities: tuple[str, ...], ends: list[str]) -> None:
    try:
        result = omni.generate(prompt, stream=False, modalities=modalities)
        assert result.text == (prompt if "text" in modalities else "")
        ends.append("")
    except OmniError as error:
        ends.append(str(error))


def _held(omni: Omni) -> tuple[list[int], list[int], int, int]:
    """Pools of edges and descriptors of the engines' processes; the same of this one, with all its shared memory."""
    pids = pids_of(omni).values()
    ours = Path("/proc/self/maps").read_text().count("memfd:omni")
    return shared_mappings(pids), descriptors(pids), ours, open_files()


def _assert_back(omni: Omni, held: tuple[list[int], list[int], int, int]) -> None:
    """All engines run, with their memory of before."""
    assert eventually(lambda: all(placed.up for placed in group_of(omni)._supervisor.by_place.values()))
    gc.collect()
    assert eventually(lambda: _held(omni) == held, PATIENCE_SECONDS / 10), (held, _held(omni))


@pytest.mark.parametrize(
    ("place", "seed"),
    few(1, [(place, seed) for seed in range(20) for place in (OTHER_SINGER, WRITER, SINGER)], SLOW),
)
def test_an_engine_is_killed_at_a_random_moment(omni: Omni, place: str, seed: int):
    chance = random.Random(f"{place} {seed}")
    assert_nothing_held(omni)
    gc.collect()
    held, threads_before, others = _held(omni), threading.active_count(), children() - set(pids_of(omni).values())
    ends: list[str] = []
    threads = [
        threading.Thread(
            target=_ask,
            args=(omni, "abc" * chance.randrange(1, 200), chance.choice((("text",), ("text", "audio"))), ends),
        )
        for _ in range(REQUESTS)
    ]
    for thread in threads:
        thread.start()
    time.sleep(chance.uniform(0, 0.15))
    pid = pids_of(omni)[place]
    os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert len(ends) == REQUESTS
    lost = "writer" if place == WRITER else "singer"
    assert all(not end or (lost in end and "SIGKILL" in end) for end in ends), ends
    assert eventually(lambda: pids_of(omni)[place] != pid)
    for _ in range(3):
        assert_answers(omni)
    assert_nothing_held(omni)
    _assert_back(omni, held)
    assert set(pids_of(omni).values()) <= children()
    assert eventually(lambda: len(children() - others) == 3 and threading.active_count() == threads_before)


_PROGRAM = f"""
import sys, threading
sys.path[:0] = {SOURCE_ROOTS}
from omni import Omni
from tests.support.echo_family import echo_plugins
print("begins", flush=True)
omni = Omni(sys.argv[1], device="cpu", plugins=echo_plugins(), overrides={{"singer.place": "cpu/2"}})
for _ in range({REQUESTS}):
    threading.Thread(target=lambda: [omni.generate("abc" * 200, stream=False) for _ in range(10**6)]).start()
print("asks", flush=True)
"""


def _of_session(session: int) -> list[int]:
    """Processes of a session that run: a program's and those of its engines."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                fields = (process / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended meanwhile
            if fields[0] != "Z" and int(fields[3]) == session:
                found.append(int(process.name))
    return found


@pytest.mark.parametrize(
    ("after", "seed"), few(1, [(line, seed) for seed in range(10) for line in ("asks", "begins")], SLOW)
)
def test_the_users_process_is_killed_at_a_random_moment(model: Path, after: str, seed: int):
    """begins: while it starts. asks: beside its requests."""
    shared = sorted(os.listdir("/dev/shm"))
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(model)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        try:
            assert program.stdout is not None
            assert any(line.strip() == after for line in iter(program.stdout.readline, ""))
            time.sleep(random.Random(f"{after} {seed}").uniform(0, 1 if after == "asks" else 10))
        finally:
            program.kill()
    assert eventually(lambda: not _of_session(program.pid)), "the engines' processes have ended"
    assert sorted(os.listdir("/dev/shm")) == shared
