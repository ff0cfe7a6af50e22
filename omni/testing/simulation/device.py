"""A device whose streams run late, in any order that launches, events and waits allow. A seed determines the order."""

import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any, Generic, TypeVar

import torch

from omni.device import COMPLETED, Device, Event, HostTask, Phase, Stream
from omni.device.sync import host_waits
from omni.testing.simulation.checker import Checker, Race
from omni.testing.simulation.recorder import OperationRecorder
from omni.testing.simulation.stream import (
    Barrier,
    Mark,
    QueuedPhase,
    SimulatedEvent,
    SimulatedStream,
    Task,
    advance,
    join,
)
from omni.testing.simulation.waits import WaitLog

_PATIENCE = 1.1
"""Growth of the time per poll while nothing else happens, so that seconds of stall need few polls."""
_MAX_IDLE = 250


class Schedule:
    """Draws durations, in seconds of the device's own clock. Each stream's pace is between a hundred times faster and ten times
    slower than the host, so that seeds differ in which side waits. stalls: the share of phases that take as long as thousands."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.stalls = self.random.choice((0.0, 0.0, 0.005, 0.05))
        self._host_step = 1e-5

    def pace(self) -> float:
        """Mean seconds of a phase on a new stream."""
        return float(10 ** self.random.uniform(-7, -4))

    def duration(self, pace: float) -> float:
        seconds = self.random.expovariate(1 / pace)
        if self.random.random() < self.stalls:
            seconds += 10 ** self.random.uniform(-2, 1)
        return seconds

    def host_step(self, idle: int) -> float:
        """Seconds until the host's next call. idle: calls since the last launch or finished operation."""
        return float(self._host_step * self.random.random() * _PATIENCE ** min(idle, _MAX_IDLE))


_PATIENT = 1e9
"""Seconds, longer than any operation takes."""


class SimulatedDevice(Device):
    """The CPU with the timing of an accelerator.

    With a seed, streams advance at each of the host's calls, each at its own pace, by the device's own clock. Without one, they run
    only in `run` or `synchronize`. A phase runs as a whole, in its stream's order; a copy reads its source then. One thread only.

    Every memory access is checked: `races` lists accesses that no launch, event or wait orders, even if they happened in the right
    order.

    without: the name of a wait (`find_waits`) to leave out: the host continues at once, and a stream does not wait.
    now: seconds. done: operations that have run. trace: operations that ran and events that were polled, in order. waits: counts of
    executed waits. latest: the most operations pending at once, to show that work was late.
    """

    def __init__(self, seed: int | None = None, *, without: str | None = None, check: bool = True) -> None:
        super().__init__(torch.device("cpu"))
        self.now = 0.0
        self.done = 0
        self.streams: list[SimulatedStream] = []
        self.trace: list[tuple[str, str, int]] = []
        self.waits = WaitLog()
        self.latest = 0
        self.schedule = Schedule(seed) if seed is not None else None
        self._without = without
        self._checker = Checker()
        self._recorder = OperationRecorder(self._checker) if check else None
        self.host_observer = self._checker
        self._launches = 0
        self._events = 0
        self._idle = 0
        self._running = False

    @property
    def races(self) -> list[Race]:
        return self._checker.races

    @property
    def pending(self) -> int:
        return sum(len(stream.queue) for stream in self.streams)

    def assert_no_races(self) -> None:
        """Raises AssertionError with a description of the races. Runs and checks pending operations first."""
        while self.skip():
            pass
        if self.races:
            raise AssertionError(f"{len(self.races)} races\n" + "\n".join(str(race) for race in self.races))

    def seconds(self) -> float:
        """The device's own clock, `now`."""
        return self.now

    def stream(self, name: str, *, priority: int = 0) -> SimulatedStream:
        pace = self.schedule.pace() if self.schedule is not None else 0.0
        stream = SimulatedStream(name, len(self.streams) + 1, pace)
        self.streams.append(stream)
        self._checker.add(stream)
        return stream

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        assert isinstance(stream, SimulatedStream)
        self.host_step()
        stream.tick += 1
        self._launches += 1
        self._follow_host(stream)
        advance(stream.clock, stream.agent, stream.tick)
        took = self.schedule.duration(stream.pace) if self.schedule is not None else 0.0
        inference, clock = torch.is_inference_mode_enabled(), list(stream.clock)
        images = self._checker.images(buffers) if self._recorder is not None else ()
        number, tick = self._launches, stream.tick
        self._enqueue(
            stream,
            QueuedPhase(
                phase=phase,
                buffers=buffers,
                number=number,
                tick=tick,
                clock=clock,
                inference=inference,
                at=self.now,
                due_after=took,
                images=images,
            ),
        )

    def record(self, stream: Stream) -> Event:
        assert isinstance(stream, SimulatedStream)
        self._events += 1
        self._follow_host(stream)
        event = SimulatedEvent(self.answer, stream, list(stream.clock), self._events)
        self._enqueue(stream, Mark(event, self.now))
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        assert isinstance(stream, SimulatedStream)
        if event is COMPLETED:
            return
        name = self.waits.name(sys._getframe(1))
        self.waits.add(name, late=not isinstance(event, SimulatedEvent) or not event.reached)
        if name == self._without:
            return
        if isinstance(event, SimulatedEvent):
            join(stream.clock, event.clock)
        self._enqueue(stream, Barrier(event, self.now))

    def wait_remote(self, stream: Stream, event: Event) -> None:
        assert isinstance(stream, SimulatedStream)
        self._enqueue(stream, Barrier(event, self.now, remote=True))

    def answer(self, event: SimulatedEvent, caller: FrameType) -> bool:
        names = self.waits.names(caller)
        self.host_step()
        for name in names:
            self.waits.add(name, late=not event.reached)
        self.trace.append((names[0], event.stream.name, event.reached))
        if self._without in names:
            return True
        if event.reached:
            join(self._checker.host, event.clock)
        return event.reached

    def host_worker(self, name: str) -> "SimulatedHostWorker":
        return SimulatedHostWorker(self, name)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, stream: Stream) -> torch.Tensor:
        assert isinstance(stream, SimulatedStream)
        tensor = super().empty(shape, dtype, stream)
        self._checker.allocated(tensor, stream)
        return tensor

    def synchronize(self) -> None:
        host_waits("Device.synchronize")
        while self.skip():
            pass
        for stream in self.streams:
            if not stream.queue:
                join(self._checker.host, stream.clock)

    def run(self, names: Iterable[str] | None = None, *, operations: int | None = None) -> int:
        """Runs ready operations of the streams of these names, at most `operations` in all. Returns their number."""
        chosen = None if names is None else set(names)
        count = 0
        for stream in self.streams:
            if chosen is not None and stream.name not in chosen:
                continue
            while count != operations and stream.can_run:
                self._run_head(stream)
                count += 1
        return count

    def stall(self, name: str, seconds: float) -> None:
        for stream in self.streams:
            if stream.name == name:
                stream.free_at = max(stream.free_at, self.now) + seconds

    def host_step(self) -> None:
        """Advances time as between two host calls, and runs the operations that end by then."""
        if self.schedule is None or self._running:
            return
        self.latest = max(self.latest, self.pending)
        self.now += self.schedule.host_step(self._idle)
        self._idle += 1
        while (stream := self._next()) is not None and stream.due <= self.now:
            self._run_head(stream)

    def skip(self, until: float = _PATIENT) -> bool:
        """Runs the operation that ends next, if it ends before `until`. Returns whether there was one. Waits where only other ranks
        can go on."""
        stream = self._next()
        if stream is None and (remote := self._remote()):
            _wait_for_any(remote)
            stream = self._next()
        if stream is None or stream.due > until:
            return False
        self.now = max(self.now, stream.due)
        self._run_head(stream)
        return True

    def _remote(self) -> list[Barrier]:
        """What streams wait for that other ranks bring about."""
        heads = [stream.queue[0] for stream in self.streams if stream.queue]
        return [head for head in heads if isinstance(head, Barrier) and head.remote]

    def describe(self) -> str:
        busy = [f"stream {s.name!r}: {len(s.queue)} pending, first {s.queue[0]}" for s in self.streams if s.queue]
        return "\n".join(busy) or "nothing is pending on the device"

    def _next(self) -> SimulatedStream | None:
        ready = [stream for stream in self.streams if stream.queue and stream.can_run]
        return min(ready, key=lambda stream: stream.due) if ready else None

    def _follow_host(self, stream: SimulatedStream) -> None:
        """Orders later work of the stream after all host actions so far."""
        join(stream.clock, self._checker.host)
        self._checker.host_step()

    def _enqueue(self, stream: SimulatedStream, task: Task) -> None:
        stream.queue.append(task)
        self._idle = 0

    def _run_head(self, stream: SimulatedStream) -> None:
        due = stream.due
        task = stream.queue.popleft()
        stream.free_at = due
        self.done += 1
        if isinstance(task, Mark):
            task.event.reached, task.event.reached_at = True, due
        elif isinstance(task, QueuedPhase):
            self._idle = 0
            self._run_phase(stream, task)

    def _run_phase(self, stream: SimulatedStream, task: QueuedPhase) -> None:
        name = task.phase.__name__
        self.trace.append((name, stream.name, task.number))
        self._running = True
        try:
            with torch.inference_mode(task.inference):
                self._checker.begin(stream, task)
                with ExitStack() as stack:
                    if self._recorder is not None:
                        stack.enter_context(self._recorder)
                        stack.enter_context(self._recorder.kernels.watching())
                    super().launch(stream, task.phase, *task.buffers)
        finally:
            self._checker.end()
            self._running = False
        stream.ran.append(name)


_REMOTE_SECONDS = 120.0


def _wait_for_any(barriers: Sequence[Barrier]) -> None:
    """Raises TimeoutError if nothing comes from ranks in other threads."""
    deadline = time.monotonic() + _REMOTE_SECONDS
    while not any(barrier.open for barrier in barriers):
        if time.monotonic() > deadline:
            raise TimeoutError(f"other ranks send nothing: {', '.join(map(str, barriers))}")
        time.sleep(1e-4)


_THREADS = 2
"""Threads: enough for one task to overtake another."""

T = TypeVar("T")


class SimulatedTask(Generic[T]):
    def __init__(self, device: "SimulatedDevice", work: Callable[[], T]) -> None:
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

    def __init__(self, device: "SimulatedDevice", name: str) -> None:
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
