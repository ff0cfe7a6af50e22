"""Host work that must not hold the engine's thread up: done in other threads, and asked for without waiting."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

_THREADS = 32
"""Few of them ever start: who waits in a task that is slow should not hold up the others."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class HostTask(Protocol[T_co]):
    """Work that was asked for."""

    def done(self) -> bool:
        """Whether it is over. Never blocks."""
        ...

    def result(self) -> T_co:
        """What it gave; raises what it raised. Only once `done`."""
        ...

    def cancel(self) -> None:
        """Nobody will ask for the result: work that has not begun is dropped."""
        ...


class HostWorker(Protocol):
    """Does tasks, in any order and side by side: who needs an order submits the next when the one before is done."""

    def submit(self, work: Callable[[], T]) -> HostTask[T]: ...

    def close(self) -> None:
        """Drops what has not begun. Idempotent."""
        ...


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
    """Threads that are started as they are needed: a task that takes long holds up one of them, and nobody else."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix=name)

    def submit(self, work: Callable[[], T]) -> HostTask[T]:
        return _FutureTask(self._executor.submit(work))

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
