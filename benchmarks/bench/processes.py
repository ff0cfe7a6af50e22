"""The thinker and the talker as two processes on one device, each with an engine of its own."""

import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier as BarrierType
from pathlib import Path
from queue import Empty
from threading import BrokenBarrierError, Thread
from typing import TypeAlias

from bench.device import open_timed
from bench.emit import THINKER
from bench.pipelines import TALKER
from bench.sides import Load, measure
from bench.steps import StepTimes
from omni.checkpoint import Checkpoint

Answers: TypeAlias = "multiprocessing.Queue[dict[str, StepTimes]]"

_PATIENCE = 240
"""Seconds for both to load, capture and measure."""
_LOOK = 0.5
"""Seconds between looks at whether both still live."""


class _Barrier:
    """A meeting of processes. Another thread waits, since each process continues to tick."""

    def __init__(self, barrier: BarrierType) -> None:
        self._barrier = barrier
        self._thread = Thread()

    def arrive(self) -> None:
        self._thread = Thread(target=self._wait, daemon=True)
        self._thread.start()

    def all_here(self) -> bool:
        if self._barrier.broken:
            raise RuntimeError("the other process is gone")
        return not self._thread.is_alive()

    def _wait(self) -> None:
        try:
            self._barrier.wait(_PATIENCE)
        except BrokenBarrierError:
            return  # `all_here` raises


def measure_processes(folder: Path, device: str, load: Load) -> dict[str, StepTimes]:
    """As `measure`, in two processes. Raises RuntimeError if one of them fails or takes too long."""
    context = multiprocessing.get_context("spawn")
    results: Answers = context.Queue()
    barrier = context.Barrier(2)
    children = [
        context.Process(target=_child, name=stage, args=(folder, device, load, stage, barrier, results))
        for stage in (THINKER, TALKER)
    ]
    for child in children:
        child.start()
    try:
        return answers_of(children, results)
    except BaseException:
        for child in children:
            child.terminate()
        raise
    finally:
        for child in children:
            child.join()


def answers_of(children: Sequence[BaseProcess], results: Answers, patience: float = _PATIENCE) -> dict[str, StepTimes]:
    """The answers of all processes. Raises RuntimeError as soon as one has failed, or after `patience` seconds."""
    times: dict[str, StepTimes] = {}
    deadline = time.monotonic() + patience
    while len(times) < len(children):
        try:
            times |= results.get(timeout=_LOOK)
        except Empty:
            failed = ", ".join(f"{child.name} {child.exitcode}" for child in children if child.exitcode)
            if failed:
                raise RuntimeError(f"a process failed, see above; exit codes: {failed}") from None
            if time.monotonic() > deadline:
                raise RuntimeError(f"the processes took more than {patience} s") from None
    return times


def _child(
    folder: Path,
    device: str,
    load: Load,
    stage: str,
    barrier: BarrierType,
    results: Answers,
) -> None:
    try:
        results.put(measure(Checkpoint(folder), open_timed(device), load, (stage,), _Barrier(barrier)))
    except BaseException:
        barrier.abort()
        raise
