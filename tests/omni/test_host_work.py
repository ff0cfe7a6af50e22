"""Work beside the engine's thread: late, and never waited for."""

import threading
import time
from collections.abc import Iterator
from functools import partial

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

    def name() -> str:
        gate.wait()
        return threading.current_thread().name

    task = worker.submit(name)
    assert not task.done()
    with pytest.raises(TimeoutError):
        task.result()
    gate.set()
    wait_for(task)
    assert task.result().startswith("thinking")


def test_a_task_that_takes_long_holds_no_other_up(worker: ThreadWorker):
    gate = threading.Event()
    long, short = worker.submit(gate.wait), worker.submit(lambda: 7)
    wait_for(short)
    assert short.result() == 7
    assert not long.done()
    gate.set()
    wait_for(long)


def test_an_error_of_host_work_is_raised_where_its_result_is_taken(worker: ThreadWorker):
    def fail() -> None:
        raise ValueError("no such word")

    task = worker.submit(fail)
    wait_for(task)
    with pytest.raises(ValueError, match="no such word"):
        task.result()
    after = worker.submit(lambda: 7)
    wait_for(after)
    assert after.result() == 7


class Crowd:
    """More tasks than threads. None ends before `gate` is set. began: numbers of the begun ones."""

    def __init__(self, worker: ThreadWorker) -> None:
        self.gate = threading.Event()
        self.began: list[int] = []
        self.tasks = [worker.submit(partial(self._work, number)) for number in range(50)]
        while not self.began:
            time.sleep(0.001)

    def _work(self, number: int) -> None:
        self.began.append(number)
        self.gate.wait()


def test_work_that_was_cancelled_is_not_begun(worker: ThreadWorker):
    crowd = Crowd(worker)
    crowd.tasks[-1].cancel()
    crowd.tasks[0].cancel()  # it runs: its result is dropped, and no more
    crowd.gate.set()
    for task in crowd.tasks:
        wait_for(task)
    assert 49 not in crowd.began
    assert 0 in crowd.began


def test_closing_drops_work_that_has_not_begun(worker: ThreadWorker):
    crowd = Crowd(worker)
    worker.close()
    worker.close()
    crowd.gate.set()
    for task in crowd.tasks:
        wait_for(task)
    assert 0 < len(crowd.began) < 50
