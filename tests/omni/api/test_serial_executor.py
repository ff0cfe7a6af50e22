"""The executor's thread: calls from it, and waits for it."""

import threading
from collections.abc import Iterator

import pytest

from omni.api.serial_executor import SerialExecutor
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture
def executor() -> Iterator[SerialExecutor]:
    executor = SerialExecutor()
    executor.start()
    yield executor
    executor.call(executor.end)
    executor.join()


def test_its_own_work_may_call_and_join_it(executor: SerialExecutor) -> None:
    """A wait for the thread that waits would never end."""
    called, joined = threading.Event(), threading.Event()
    executor.soon(lambda: executor.call(called.set))
    assert called.wait(PATIENCE_SECONDS)
    executor.soon(executor.join)
    executor.soon(joined.set)
    assert joined.wait(PATIENCE_SECONDS)


def test_before_the_start_there_is_nothing_to_join() -> None:
    waiter = threading.Thread(target=SerialExecutor().join, daemon=True)
    waiter.start()
    waiter.join(PATIENCE_SECONDS)
    assert not waiter.is_alive()
