"""The host's own threads beside a simulated device."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Generic, TypeVar

from omni.device import Device, HostTask
from omni.testing.simulation.stream import SimulatedEvent, SimulatedStream

_THREADS = 2
"""Threads: enough for one task to overtake another."""

Answer = Callable[[SimulatedEvent, FrameType], bool]
T = TypeVar("T")


class SimulatedTask(Generic[T]):
    def __init__(self, answer: Answer, work: Callable[[], T]) -> None:
        self._answer = answer
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
        return self._answer(self.event, sys._getframe(1))

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

    def __init__(self, device: Device, name: str, answer: Answer) -> None:
        """answer: says whether an event is done to the frame that asks."""
        self._device = device
        self._answer = answer
        self._name = name
        self._threads: list[SimulatedStream] = []
        self._tasks = 0

    def submit(self, work: Callable[[], T]) -> HostTask[T]:
        if len(self._threads) < _THREADS:
            thread = self._device.stream(self._name)
            assert isinstance(thread, SimulatedStream)
            self._threads.append(thread)
        thread = self._threads[self._tasks % _THREADS]
        self._tasks += 1
        task = SimulatedTask(self._answer, work)
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
