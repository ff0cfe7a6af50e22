"""Stages run the parts of a failed batch again, alone: good for users, while in tests it hides that something failed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from omni.stage import MailboxWorker

Worker = MailboxWorker[Any]
_count = MailboxWorker.retried


@dataclass(slots=True)
class _Planted:
    """depth: how many `planted_faults` are entered."""

    depth: int = 0


_planted = _Planted()


@contextmanager
def no_retries() -> Iterator[None]:
    """Raises AssertionError at its end if a batch failed meanwhile and was run again, request by request or item by item: in any
    stage whose worker is a `MailboxWorker`, in any thread of the process. Whatever else is raised gets a note that says so.

    `Simulation.run` and `LaunchGuard` do it by themselves. Of several the innermost tells. Faults that are planted belong in
    `planted_faults`.
    """
    failed: list[tuple[str, Exception]] = []

    def retried(worker: Worker, batch: str, error: Exception) -> None:
        if not _planted.depth:
            failed.append((f"{worker.name}, {batch}", error))
        _count(worker, batch, error)

    with patch.object(MailboxWorker, "retried", retried):
        try:
            yield
        except BaseException as error:
            if failed:
                error.add_note(_told(failed))
            raise
    if failed:
        raise AssertionError(_told(failed)) from failed[0][1]


@contextmanager
def planted_faults() -> Iterator[None]:
    """What fails in here is meant to: no `no_retries`, around it or within, tells of it."""
    _planted.depth += 1
    try:
        yield
    finally:
        _planted.depth -= 1


def _told(failed: list[tuple[str, Exception]]) -> str:
    lines = [f"- {batch}: {type(error).__name__}: {error}" for batch, error in failed[:10]]
    return "\n".join([f"batches failed and were run again, {len(failed)} in all:", *lines])
