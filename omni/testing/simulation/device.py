"""A device whose streams run late, in any order that launches, events and waits allow. A seed determines the order."""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType

import torch

from omni.device import COMPLETED, Device, Event, Phase, Stream
from omni.device.sync import host_waits
from omni.testing.simulation.checker import Checker, Race, Running
from omni.testing.simulation.coroutine import PhaseThread
from omni.testing.simulation.host_work import SimulatedHostWorker
from omni.testing.simulation.recorder import OperationRecorder
from omni.testing.simulation.shared_time import Schedule, SharedTime
from omni.testing.simulation.stream import (
    Barrier,
    Clock,
    Mark,
    PausedPhase,
    QueuedPhase,
    SimulatedEvent,
    SimulatedStream,
    Task,
    advance,
    join,
)
from omni.testing.simulation.waits import WaitLog

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

    def __init__(
        self,
        seed: int | None = None,
        *,
        without: str | None = None,
        without_on: str | None = None,
        check: bool = True,
        shared_time: SharedTime | None = None,
    ) -> None:
        """without_on: the stream whose wait is left out; None for all. shared_time: shared with other devices, in place of a
        seed."""
        super().__init__(torch.device("cpu"))
        self.shared_time = shared_time or SharedTime(seed)
        self._alone = shared_time is None
        self.streams: list[SimulatedStream] = []
        self.waits = WaitLog()
        self.latest = 0
        self.transfers_block = False
        """Whether transfers between ranks occupy their stream, as on CUDA."""
        self.phases_pause = False
        """Whether phases may call `pause`. Their Triton kernels are not watched."""
        self._phase_threads: dict[int, PhaseThread] = {}
        """Threads by number of the stream."""
        self._without, self._without_on = without, without_on
        self._checker = Checker(self.shared_time.agent())
        self._recorder = OperationRecorder(self._checker) if check else None
        self.host_observer = self._checker
        self._launches = 0
        self._events = 0
        self._held: dict[int, list[Event]] = {}
        """Events that the newest phase of a stream makes later phases wait for, by number of the stream."""

    @property
    def now(self) -> float:
        return self.shared_time.now

    @property
    def done(self) -> int:
        return self.shared_time.done

    @property
    def trace(self) -> list[tuple[str, str, int]]:
        return self.shared_time.trace

    @property
    def schedule(self) -> Schedule | None:
        return self.shared_time.schedule

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
        stream = SimulatedStream(name, self.shared_time.agent(), pace, self._run_head)
        self.streams.append(stream)
        self.shared_time.add(stream)
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
        self._follow_host(stream)
        event = self.event(stream, list(stream.clock))
        self._enqueue(stream, Mark(event, self.now))
        return event

    def event(self, stream: SimulatedStream, clock: Clock) -> SimulatedEvent:
        self._events += 1
        return SimulatedEvent(self.answer, stream, clock, self._events)

    def wait(self, stream: Stream, event: Event) -> None:
        assert isinstance(stream, SimulatedStream)
        if event is COMPLETED:
            return
        name = self.waits.name(sys._getframe(1))
        self.waits.add(name, late=not isinstance(event, SimulatedEvent) or not event.reached)
        if self.leaves_out(name, stream):
            return
        if isinstance(event, SimulatedEvent):
            join(stream.clock, event.clock)
        self._enqueue(stream, Barrier(event, self.now))

    def wait_remote(self, stream: Stream, event: Event) -> None:
        assert isinstance(stream, SimulatedStream)
        if self.transfers_block:
            return  # as on CUDA
        name = self.waits.name(sys._getframe(1))
        self.waits.add(name, late=not event.done())
        if not self.leaves_out(name, stream):
            self._enqueue(stream, Barrier(event, self.now, remote=True))

    def leaves_out(self, name: str, stream: SimulatedStream) -> bool:
        """Whether the wait of this name is left out on the stream."""
        return name == self._without and self._without_on in (None, stream.name)

    def answer(self, event: SimulatedEvent, caller: FrameType) -> bool:
        names = self.waits.names(caller)
        self.host_step()
        for name in names:
            self.waits.add(name, late=not event.reached)
        self.trace.append((names[0], event.stream.name, event.reached))
        if any(self.leaves_out(name, event.stream) for name in names):
            return True
        if event.reached:
            join(self._checker.host, event.clock)
        return event.reached

    def host_worker(self, name: str) -> SimulatedHostWorker:
        return SimulatedHostWorker(self, name, self.answer)

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
            if stream.idle:
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
        if self.schedule is None or self.shared_time.running:
            return
        self.latest = max(self.latest, self.pending)
        self.shared_time.host_step()

    def skip(self, until: float = _PATIENT) -> bool:
        """Runs the operation that ends next, if it ends before `until`. Returns whether there was one. Waits where only ranks in
        other threads can go on."""
        if self._alone and self.shared_time.next() is None and (remote := self._remote()):
            _wait_for_any(remote)
        return self.shared_time.skip(until)

    def _remote(self) -> list[Barrier]:
        """Events of other ranks that streams wait for."""
        heads = [stream.queue[0] for stream in self.streams if stream.queue]
        return [head for head in heads if isinstance(head, Barrier) and head.remote]

    def describe(self) -> str:
        return "\n".join(self.shared_time.describe()) or "nothing is pending on the device"

    @property
    def running(self) -> Running:
        """The running phase. Raises AssertionError if none runs."""
        return self._checker.running

    def beside(self, stream: SimulatedStream, name: str) -> SimulatedStream:
        """An agent whose accesses the stream does not order. Nothing is launched on it."""
        agent = SimulatedStream(f"{stream.name} {name}", self.shared_time.agent(), 0.0, self._run_head)
        self._checker.add(agent)
        return agent

    def host_clock(self) -> Clock:
        """The events that the host has performed or observed so far."""
        clock = list(self._checker.host)
        self._checker.host_step()
        return clock

    def host_learns(self, clock: Clock) -> None:
        """Orders the host's further work after the work that another host knew of."""
        join(self._checker.host, clock)

    def hold(self, event: Event) -> None:
        """Makes the work after the running phase on its stream wait for the event."""
        self._held[self.running.stream.agent].append(event)

    @contextmanager
    def recorded(self, running: Running) -> Iterator[None]:
        """While entered, operations are those of this phase. None runs."""
        self.shared_time.running = True
        try:
            with torch.inference_mode(running.launched.inference), self._checker.attributed(running):
                if self._recorder is None:
                    yield
                    return
                # Phases that may pause do not nest: watchers of kernels would be restored in the wrong order.
                watching = nullcontext() if self.phases_pause else self._recorder.kernels.watching()
                with self._recorder, watching:
                    yield
        finally:
            self.shared_time.running = False

    def pause(self, event: SimulatedEvent) -> None:
        """Called in a phase, where phases may pause: returns once the event is reached, and orders the rest of the phase after it.
        Other operations run meanwhile."""
        running = self._checker.running
        stream, launched = running.stream, running.launched
        stream.paused = PausedPhase(launched, event)
        with self._checker.attributed(None):
            self.shared_time.running = False
            self._phase_threads[stream.agent].pause()
            self.shared_time.running = True
        stream.paused = None
        for clock in (launched.clock, stream.come):
            join(clock, event.clock)

    def close(self) -> None:
        """Ends phases that have paused."""
        for thread in self._phase_threads.values():
            thread.close()
        self._phase_threads.clear()

    def attributed(self, running: Running) -> AbstractContextManager[None]:
        """While entered in a phase, operations are those of another one."""
        return self._checker.attributed(running)

    def _follow_host(self, stream: SimulatedStream) -> None:
        """Orders later work of the stream after all host actions so far."""
        join(stream.clock, self._checker.host)
        self._checker.host_step()

    def _enqueue(self, stream: SimulatedStream, task: Task) -> None:
        stream.queue.append(task)
        self.shared_time.moved()

    def _run_head(self, stream: SimulatedStream) -> None:
        due = stream.due
        stream.free_at = due
        self.shared_time.done += 1
        if stream.paused is not None:
            self.shared_time.moved()
            self._phase_threads[stream.agent].resume()
            return
        task = stream.queue.popleft()
        if isinstance(task, Mark):
            join(task.event.clock, stream.come)
            task.event.reached, task.event.reached_at = True, due
        elif isinstance(task, QueuedPhase):
            self.shared_time.moved()
            join(task.clock, stream.come)
            self._run_phase(stream, task)
        elif isinstance(task.event, SimulatedEvent):
            join(stream.come, task.event.clock)

    def _run_phase(self, stream: SimulatedStream, task: QueuedPhase) -> None:
        name = task.phase.__name__
        self.trace.append((name, stream.name, task.number))
        running = Running(stream, task)
        with self._checker.attributed(running):
            self._checker.begin(running)
        if not self.phases_pause:
            self._execute(running)
            return
        thread = self._phase_threads.get(stream.agent)
        if thread is None:
            thread = self._phase_threads[stream.agent] = PhaseThread()
        thread.run(lambda: self._execute(running))

    def _execute(self, running: Running) -> None:
        stream, task = running.stream, running.launched
        held = self._held[stream.agent] = []
        try:
            with self.recorded(running):
                super().launch(stream, task.phase, *task.buffers)
        finally:
            stream.queue.extendleft(Barrier(event, self.now) for event in reversed(held))
        stream.ran.append(task.phase.__name__)


_REMOTE_SECONDS = 120.0


def _wait_for_any(barriers: Sequence[Barrier]) -> None:
    """Raises TimeoutError without progress of ranks in other threads."""
    deadline = time.monotonic() + _REMOTE_SECONDS
    while not any(barrier.open for barrier in barriers):
        if time.monotonic() > deadline:
            raise TimeoutError(f"other ranks send nothing: {', '.join(map(str, barriers))}")
        time.sleep(1e-4)
