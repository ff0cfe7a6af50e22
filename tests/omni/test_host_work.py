"""Work beside the engine's thread: in order, late, and never waited for."""

import threading
import time
from collections.abc import Iterator

import pytest

from omni.device.host_work import HostTask, ThreadWorker


@pytest.fixture
def worker() -> Iterator[ThreadWorker]:
    worker = ThreadWorker("thinking")
    yield worker
    worker.close()


def wait_for(task: HostTask[object]) -> None:
    while not task.done():
        time.sleep(0.001)


def test_a_result_is_refused_until_the_work_is_done(worker: ThreadWorker):
    gate = threading.Event()
    task = worker.submit(lambda: gate.wait() and threading.current_thread().name)
    assert not task.done()
    with pytest.raises(TimeoutError):
        task.result()
    gate.set()
    wait_for(task)
    assert task.result().startswith("thinking")


def test_tasks_are_done_one_after_the_other_in_order(worker: ThreadWorker):
    log: list[int] = []
    tasks = [worker.submit(lambda number=number: log.append(number)) for number in range(20)]
    wait_for(tasks[-1])
    assert log == list(range(20))
    assert all(task.done() for task in tasks)


def test_what_the_work_raises_comes_out_where_its_result_is_taken(worker: ThreadWorker):
    def fail() -> None:
        raise ValueError("no such word")

    task = worker.submit(fail)
    wait_for(task)
    with pytest.raises(ValueError, match="no such word"):
        task.result()
    after = worker.submit(lambda: 7)
    wait_for(after)
    assert after.result() == 7


def test_closing_drops_what_has_not_begun(worker: ThreadWorker):
    began, gate, log = threading.Event(), threading.Event(), []

    def first() -> None:
        began.set()
        gate.wait()
        log.append("first")

    running = worker.submit(first)
    began.wait()
    worker.submit(lambda: log.append("second"))
    worker.close()
    worker.close()
    gate.set()
    wait_for(running)
    assert log == ["first"]
