"""The processes of a model's engines, and what they hold."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from omni import AsyncOmni, Omni
from omni.process import EngineGroup


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
