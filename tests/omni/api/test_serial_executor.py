"""The thread that does what is asked of it, whatever that raises."""

from collections.abc import Callable

import pytest

from omni.api.serial_executor import SerialExecutor


class Panic(BaseException):
    """As of a library in another language."""


def raising(error: BaseException) -> Callable[[], object]:
    def work() -> object:
        raise error

    return work


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [ValueError("x"), Panic("x"), SystemExit(3)], ids=lambda error: type(error).__name__)
def test_it_goes_on_after_whatever_is_raised(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    executor = SerialExecutor()
    executor.start()
    executor.ask(raising(error))
    executor.ask(executor.end)
    assert executor._ended.wait(10), "its thread ended without saying so"
    executor.join()
    assert [record.getMessage() for record in caplog.records] == ["work of the executor failed"]
    assert executor.call(lambda: 3) == 3, "whoever is left does it"


def test_what_is_asked_beside_the_end_is_done_after_a_panic(caplog: pytest.LogCaptureFixture) -> None:
    """Both are in the queue as the thread looks for the last time."""
    executor, done = SerialExecutor(), []
    for work in (executor.end, raising(Panic()), lambda: done.append(1)):
        executor.soon(work)
    executor.start()
    executor.join()
    executor._thread.join(10)
    assert done == [1]
    assert len(caplog.records) == 1
