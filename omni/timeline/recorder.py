"""Records the times of launches as they happen, in bounded memory."""

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from omni.device import DeviceTimer, ObservedStream, Stamp
from omni.timeline.clock import DeviceClock

_UNREAD = 4096
"""Phases with unread events; beyond this number, each launch reads some of them."""
_MOST_UNREAD = 4 * _UNREAD


class Launched(NamedTuple):
    """A launched phase. Times are of `perf_counter_ns`."""

    stream: str
    phase: str
    step: int | None
    began: int
    ended: int


class Ran(NamedTuple):
    """start, end: by the device's clock, or the host's if they are the same."""

    launched: Launched
    start: int
    end: int


class Did(NamedTuple):
    stream: str
    name: str
    numbers: Mapping[str, int]
    began: int
    ended: int


class _Unread(NamedTuple):
    launched: Launched
    first: Stamp
    last: Stamp


class Recorder:
    """A `LaunchObserver`, used by the thread that drives the device. It receives all launches, and records those
    between `start` and `stop`.

    started: time of `perf_counter_ns`. ran, did: recorded phases and host spans. dropped: number of phases and host
    spans lost for lack of room.
    """

    def __init__(self, timer: DeviceTimer | None, capacity: int) -> None:
        """capacity: maximum of recorded phases, and of host spans; the oldest are dropped first."""
        self.recording = False
        self.started = 0
        self.dropped = 0
        self.ran: deque[Ran] = deque(maxlen=capacity)
        self.did: deque[Did] = deque(maxlen=capacity)
        self._timer = timer
        self._clock: DeviceClock | None = None
        self._unread: deque[_Unread] = deque()
        self._step: int | None = None
        self._launching: tuple[str, str, int] | None = None
        self._stream: ObservedStream | None = None
        self._first: Stamp | None = None

    @property
    def unread(self) -> int:
        """Number of phases not known to have run."""
        return len(self._unread)

    def start(self, clock: DeviceClock | None) -> None:
        """Starts a new recording. clock: None if the device runs phases while they are launched."""
        while self._unread:
            self._forget_oldest()
        self.ran.clear()
        self.did.clear()
        self.dropped = 0
        self._clock = clock
        self.started = time.perf_counter_ns()
        self.recording = True

    def stop(self) -> None:
        self.recording = False

    def begin(self, stream: ObservedStream, phase: str) -> None:
        if not self.recording:
            return
        # Taken before the event: a phase cannot run before its launch begins.
        self._launching = (stream.name, phase, time.perf_counter_ns())
        if self._timer is not None:
            self._stream, self._first = stream, self._timer.stamp(stream)

    def end(self) -> None:
        if self._launching is None:
            return
        (stream, phase, began), self._launching = self._launching, None
        launched = Launched(stream, phase, self._step, began, time.perf_counter_ns())
        if self._timer is None:
            self._keep(Ran(launched, began, launched.ended))
            return
        assert self._stream is not None
        assert self._first is not None
        self._unread.append(_Unread(launched, self._first, self._timer.stamp(self._stream)))
        if len(self._unread) > _UNREAD:
            self.poll(2)
            if len(self._unread) > _MOST_UNREAD:
                self._forget_oldest()
                self.dropped += 1

    @contextmanager
    def host_span(self, stream: ObservedStream, name: str, numbers: dict[str, int]) -> Iterator[None]:
        """Launches inside belong to the span's step."""
        outer, self._step = self._step, numbers.get("step", self._step)
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            ended, self._step = time.perf_counter_ns(), outer
            if self.recording:
                self._keep_done(Did(stream.name, name, numbers, began, ended))

    def host_did(self, stream: str, name: str, since: int, numbers: dict[str, int]) -> None:
        if self.recording and since >= self.started:
            self._keep_done(Did(stream, name, numbers, since, time.perf_counter_ns()))

    def poll(self, most: int | None = None) -> None:
        """Reads the events of at most `most` phases that have run. Never waits."""
        timer, clock, unread = self._timer, self._clock, self._unread
        if timer is None or clock is None:
            return
        count = 0
        while unread and count != most and unread[0].last.done():
            launched, first, last = unread.popleft()
            start = clock.time(first)
            self._keep(Ran(launched, start, start + timer.elapsed(first, last)))
            timer.give_back(last)
            if not clock.refer(first, start):
                timer.give_back(first)
            count += 1

    def _keep(self, ran: Ran) -> None:
        self.dropped += len(self.ran) == self.ran.maxlen
        self.ran.append(ran)

    def _keep_done(self, did: Did) -> None:
        self.dropped += len(self.did) == self.did.maxlen
        self.did.append(did)

    def _forget_oldest(self) -> None:
        assert self._timer is not None
        unread = self._unread.popleft()
        self._timer.give_back(unread.first)
        self._timer.give_back(unread.last)
