"""Records the times of launches as they happen, in bounded memory, and converts the device's times to the host's clock.

A device reports the time between two events in single precision: to 30 ns over half a second, and worse over more. So times count
from an anchor, an event that is renewed. *Probes* relate the two clocks: events on an idle stream that are known to be complete
between two of the host's times.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from omni.device import DeviceTimer, Event, Stream
from omni.timeline.trace import RECORDING

_RENEW = 500_000_000
"""Nanoseconds after which an anchor is renewed."""
_PROBES = 16
"""Probes at each end of a recording; the narrowest is used."""


@dataclass(frozen=True, slots=True)
class Fit:
    """host = origin + rate * device. error: bound of its error, in nanoseconds."""

    origin: int
    rate: float
    error: int

    def host(self, device: int) -> int:
        return self.origin + round(self.rate * device)

    def not_before(self, launches: Iterable[tuple[int, int]]) -> "Fit":
        """The fit, moved so that no phase runs before its launch begins: the middle of a probe's two host times is an estimate; the
        order of launch and run is certain. launches: (host time, device time) pairs."""
        early = max((began - self.host(start) for began, start in launches), default=0)
        return self if early <= 0 else Fit(self.origin + early, self.rate, self.error)


class DeviceClock:
    """Times of events, in nanoseconds since the first probe."""

    def __init__(self, timer: DeviceTimer) -> None:
        self._timer = timer
        self._anchor, self._middle, self._width = self._probe()
        self._at = 0

    def time(self, stamp: Event) -> int:
        return self._at + self._timer.elapsed(self._anchor, stamp)

    def refer(self, stamp: Event, at: int) -> bool:
        """Makes `stamp`, at time `at`, the anchor if the present one is old. Returns whether it keeps the stamp."""
        if at - self._at < _RENEW:
            return False
        self._timer.give_back(self._anchor)
        self._anchor, self._at = stamp, at
        return True

    def fit(self) -> Fit:
        """The host's clock as a function of the device's, between the first probe and new ones."""
        stamp, middle, width = self._probe()
        device, width = self.time(stamp), max(self._width, width)
        # Over a short time the probes' errors exceed the drift of the clocks.
        rate = (middle - self._middle) / device if device > 1000 * width else 1.0
        return Fit(self._middle, rate, width // 2)

    def _probe(self) -> tuple[Event, int, int]:
        """An event, the middle of the host's times before and after it, and the time between these."""
        probes = (self._timer.probe() for _ in range(_PROBES))
        stamp, before, after = min(probes, key=lambda probe: probe[2] - probe[1])
        return stamp, (before + after) // 2, after - before


T = TypeVar("T")
_UNREAD = 4096
"""Phases with unread events; beyond this number, each launch reads some of them."""
_MOST_UNREAD = 4 * _UNREAD


class Launched(NamedTuple):
    """A launched phase. Times are those of `perf_counter_ns`."""

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
    first: Event
    last: Event


class Recorder:
    """A `LaunchObserver`, used by the thread that drives the device. Records launches between `start` and `stop`.

    started: time of `perf_counter_ns`. ran, did: recorded phases and host spans. dropped: number of those that a full buffer
    lost.
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
        self._stream: Stream | None = None
        self._first: Event | None = None
        self._spent = 0
        """Nanoseconds of the host in which phases were recorded."""

    @property
    def unread(self) -> int:
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

    def begin(self, stream: Stream, phase: str) -> None:
        if not self.recording:
            return
        # Taken before the event: a phase cannot run before its launch begins.
        began = time.perf_counter_ns()
        self._launching = (stream.name, phase, began)
        if self._timer is not None:
            self._stream, self._first = stream, self._timer.stamp(stream)
            self._spent += time.perf_counter_ns() - began

    def end(self) -> None:
        if self._launching is None:
            return
        (stream, phase, began), self._launching = self._launching, None
        ended = time.perf_counter_ns()
        launched = Launched(stream, phase, self._step, began, ended)
        if self._timer is None:
            self._keep(self.ran, Ran(launched, began, ended))
            return
        assert self._stream is not None
        assert self._first is not None
        self._read_later(_Unread(launched, self._first, self._timer.stamp(self._stream)))
        self._spent += time.perf_counter_ns() - ended

    def moment(self, stream: Stream, name: str) -> None:
        """A phase whose start and end are one event: recording events is most of the host time of a recording."""
        if not self.recording:
            return
        now = time.perf_counter_ns()
        launched = Launched(stream.name, name, self._step, now, now)
        if self._timer is None:
            self._keep(self.ran, Ran(launched, now, now))
            return
        stamp = self._timer.stamp(stream)
        self._read_later(_Unread(launched, stamp, stamp))
        self._spent += time.perf_counter_ns() - now

    def _read_later(self, unread: _Unread) -> None:
        self._unread.append(unread)
        if len(self._unread) > _UNREAD:
            self.poll(2)
            if len(self._unread) > _MOST_UNREAD:
                self._forget_oldest()
                self.dropped += 1

    @contextmanager
    def host_span(self, stream: Stream, name: str, numbers: dict[str, int]) -> Iterator[None]:
        """Launches inside belong to the span's step. It has the time of recording them as a number, `RECORDING`."""
        outer, self._step = self._step, numbers.get("step", self._step)
        began, spent = time.perf_counter_ns(), self._spent
        try:
            yield
        finally:
            ended, self._step = time.perf_counter_ns(), outer
            if self.recording:
                if self._timer is not None:
                    numbers = {**numbers, RECORDING: self._spent - spent}
                self._keep(self.did, Did(stream.name, name, numbers, began, ended))

    def host_did(self, stream: str, name: str, since: int, numbers: dict[str, int]) -> None:
        if self.recording and since >= self.started:
            self._keep(self.did, Did(stream, name, numbers, since, time.perf_counter_ns()))

    def poll(self, most: int | None = None) -> None:
        """Reads the events of at most `most` phases that have run. Never waits."""
        timer, clock, unread = self._timer, self._clock, self._unread
        if timer is None or clock is None:
            return
        count = 0
        while unread and count != most and unread[0].last.done():
            launched, first, last = unread.popleft()
            start = clock.time(first)
            self._keep(self.ran, Ran(launched, start, start + timer.elapsed(first, last)))
            if last is not first:
                timer.give_back(last)
            if not clock.refer(first, start):
                timer.give_back(first)
            count += 1

    def _keep(self, kept: deque[T], item: T) -> None:
        self.dropped += len(kept) == kept.maxlen
        kept.append(item)

    def _forget_oldest(self) -> None:
        assert self._timer is not None
        unread = self._unread.popleft()
        for stamp in {id(stamp): stamp for stamp in (unread.first, unread.last)}.values():
            self._timer.give_back(stamp)
