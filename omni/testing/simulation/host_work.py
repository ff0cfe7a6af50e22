"""Work beside the engine's thread, without a thread: it is done late, when the seed says so."""

import sys
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from omni.device import Event, HostTask, Stream
from omni.testing.simulation.stream import SimulatedEvent, SimulatedStream

T = TypeVar("T")


class _Device(Protocol):
    """What a worker needs of its device."""

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
        except Exception as error:  # it is for who asks for the result
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
    """Does its tasks in order, on a stream of their own. The stream is made with the first task."""

    def __init__(self, device: _Device, name: str) -> None:
        self._device = device
        self._name = name
        self._stream: SimulatedStream | None = None

    def submit(self, work: Callable[[], T]) -> HostTask[T]:
        if self._stream is None:
            self._stream = self._device.stream(self._name)
        task = SimulatedTask(self._device, work)
        self._device.launch(self._stream, work_on_host, task)
        event = self._device.record(self._stream)
        assert isinstance(event, SimulatedEvent)
        task.event = event
        return task

    def close(self) -> None:
        if self._stream is not None:
            self._stream.queue.clear()


def _nothing() -> Any:
    return None


def work_on_host(task: SimulatedTask[Any]) -> None:
    task.run()
