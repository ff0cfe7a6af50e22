"""Guards against retries of failed batches, which help users but hide failures in tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from omni.engine import Engine
from omni.stage import MailboxWorker
from omni.utils.origin import with_origin

Worker = MailboxWorker[Any]
_count = MailboxWorker.retried
_close_stage = Engine.close_stage


_planted: list[None] = []
"""One entry for each active `planted_faults` block."""


@contextmanager
def no_retries() -> Iterator[None]:
    """Raises AssertionError at its end if a stage retried a batch meanwhile (`MailboxWorker.retry_each`) or was closed after a
    fault (`Engine.close_stage`); another error gets a note about it. `Simulation.run` and `LaunchGuard` enter it. The innermost of
    nested ones raises; `planted_faults` stops it."""
    failed: list[tuple[str, BaseException]] = []

    def retried(worker: Worker, batch: str, error: Exception) -> None:
        if not _planted:
            failed.append((f"{worker.name}, {batch}", error))
        _count(worker, batch, error)

    def close_stage(engine: Engine, name: str, error: BaseException) -> None:
        if not _planted:
            failed.append((f"{name}, the stage is closed", error))
        _close_stage(engine, name, error)

    with patch.object(MailboxWorker, "retried", retried), patch.object(Engine, "close_stage", close_stage):
        try:
            yield
        except BaseException as error:
            if failed:
                error.add_note(_report(failed))
            raise
    if failed:
        raise AssertionError(_report(failed)) from failed[0][1]


@contextmanager
def planted_faults() -> Iterator[None]:
    """Failures inside are intended: neither an outer nor an inner `no_retries` raises for them."""
    _planted.append(None)
    try:
        yield
    finally:
        _planted.pop()


def _report(failed: list[tuple[str, BaseException]]) -> str:
    lines = [with_origin(f"- {batch}: {type(error).__name__}: {error}", error) for batch, error in failed[:10]]
    remedy = "the second run, of each part alone, hides the fault from users: correct the code that raised"
    return "\n".join([f"batches failed and were run again, {len(failed)} in all:", *lines, remedy])
