"""Simulated host work, without threads: it runs late and in any order, by the seed."""

import sys
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from omni.device import Event, HostTask, Stream
from omni.testing.simulation.stream import SimulatedEvent, SimulatedStream

_THREADS = 2
"""Threads: enough for one task to overtake another."""

T = TypeVar("T")


class _Device(Protocol):
    """The part of a device that the worker uses."""

    def stream(self, name: str) -> SimulatedStream: ...

    def launch(self, stream: Stream, phase: Callable[..., None], *buffers: object) -> None: ...

    def record(self, stream: Stream) -> Event: ...

    def answer(self, event: SimulatedEvent, caller: Any) -> bool: ...


class SimulatedTask(Generic[T]):
    def __init__(self, device: _Device, work: Callable[[], T]) -> None:
        self._device = device
        self._work = work
        self._results: list[T] = []
        self._error: Exception | None = None
        self.event: SimulatedEvent | None = None

    def run(self) -> None:
        try:
            self._results.append(self._work())
        except Exception as error:  # raised by `result`
            self._error = error

    def done(self) -> bool:
        assert self.event is not None
        return self._device.answer(self.event, sys._getframe(1))

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        if not self._results:
            raise RuntimeError("a result was taken before the work was done")
        return self._results[0]

    def cancel(self) -> None:
        self._work = _nothing


class SimulatedHostWorker:
    """Its threads are simulated streams, created on demand. Tasks of different threads run in any order."""

    def __init__(self, device: _Device, name: str) -> None:
        self._device = device
        self._name = name
        self._threads: list[SimulatedStream] = []
        self._tasks = 0

    def submit(self, work: Callable[[], T]) -> HostTask[T]:
        if len(self._threads) < _THREADS:
            self._threads.append(self._device.stream(self._name))
        thread = self._threads[self._tasks % _THREADS]
        self._tasks += 1
        task = SimulatedTask(self._device, work)
        self._device.launch(thread, work_on_host, task)
        event = self._device.record(thread)
        assert isinstance(event, SimulatedEvent)
        task.event = event
        return task

    def close(self) -> None:
        for thread in self._threads:
            thread.queue.clear()


def _nothing() -> Any:
    return None


def work_on_host(task: SimulatedTask[Any]) -> None:
    task.run()
