"""The processes of a model's engines, and their resources."""

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from omni import AsyncOmni, Omni
from omni.process.group import EngineGroup
from tests.support.echo_family import echo_plugins, eventually

WRITER, SINGER, OTHER_SINGER = "cpu", "cpu/2", "cpu/3"


def group_of(omni: Omni | AsyncOmni) -> EngineGroup:
    engine = omni._client.engine
    assert isinstance(engine, EngineGroup)
    return engine


def pids_of(omni: Omni | AsyncOmni) -> Mapping[str, int]:
    """By place."""
    return group_of(omni).pids


def alive(pid: int) -> bool:
    """Whether it runs: a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children() -> set[int]:
    """Processes that this one started and that run."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has ended meanwhile
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return {pid for pid in found if alive(pid)}


def descriptors(pids: Iterable[int]) -> list[int]:
    """How many each process has open."""
    return [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]


def shared_mappings(pids: Iterable[int]) -> list[int]:
    """How many pools of edges each process has mapped."""
    return [Path(f"/proc/{pid}/maps").read_text().count("omni-edge") for pid in pids]


def opened_apart(model: Path, overrides: Mapping[str, object] = MappingProxyType({}), singer: str = SINGER) -> Omni:
    """The writer in one process, the singer in another."""
    settings = {"singer.place": singer, "engine.restart_seconds": 0}
    return Omni(model, device="cpu", plugins=echo_plugins(), overrides={**settings, **overrides})


def kill(omni: Omni, *places: str) -> None:
    """Returns when the group has noticed."""
    pids = {place: pids_of(omni)[place] for place in places}
    engines = group_of(omni)._supervisor.by_place
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: all(not engines[at].up or engines[at].engine.pid != pid for at, pid in pids.items()))


def assert_answers(omni: Omni, text: str = "abc") -> None:
    result = omni.generate(text, stream=False)
    assert result.text == text
    assert result.audio is not None
