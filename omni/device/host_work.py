"""Host work that must not hold the engine's thread up: done in a thread of its own, and asked for without waiting."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

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


class HostWorker(Protocol):
    """Does one task after the other, in the order they came."""

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


class ThreadWorker:
    """One thread, started with the first task."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, work: Callable[[], T]) -> HostTask[T]:
        return _FutureTask(self._executor.submit(work))

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
