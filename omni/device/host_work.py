"""Host work that would hold up the engine's thread: runs in other threads and is polled."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

_THREADS = 32
"""Maximum number of threads, started on demand: enough that slow tasks do not delay the others."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class HostTask(Protocol[T_co]):
    """A task that was given to a thread."""

    def done(self) -> bool:
        """Whether the task is finished. Never blocks."""

    def result(self) -> T_co:
        """The task's result; raises its exception. Only once `done`."""

    def cancel(self) -> None:
        """Drops the task if it has not begun. Its result must not be read afterwards."""


class HostWorker(Protocol):
    """Runs tasks concurrently, in any order."""

    def submit(self, work: Callable[[], T]) -> HostTask[T]: ...

    def close(self) -> None: ...


class _FutureTask(Generic[T]):
    def __init__(self, future: "Future[T]") -> None:
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def result(self) -> T:
        return self._future.result(timeout=0)

    def cancel(self) -> None:
        self._future.cancel()


class ThreadWorker:
    """Starts threads on demand. A long task occupies one thread only."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix=name)

    def submit(self, work: Callable[[], T]) -> HostTask[T]:
        return _FutureTask(self._executor.submit(work))

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
