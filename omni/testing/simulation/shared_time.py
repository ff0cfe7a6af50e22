"""The time of simulated devices: the next action, and its time. The devices of a stage's ranks share one."""

import random
from collections.abc import Iterable
from typing import Protocol

_PATIENCE = 1.1
"""Growth of the time per poll while nothing else happens, so that seconds of stall need few polls."""
_MAX_IDLE = 250


class Schedule:
    """Draws durations, in seconds of the devices' own clock. Each stream's pace is between a hundred times faster and ten times
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


class Lane(Protocol):
    """Operations that run in order: those of a stream, or the transfers from one rank to another."""

    @property
    def can_run(self) -> bool:
        """Whether the first operation can run."""

    @property
    def due(self) -> float:
        """The end of the first operation, in seconds; valid only if it can run."""

    def run(self) -> None:
        """Runs the first operation, at its end."""


class SharedTime:
    """The time of several devices. now: in seconds. done: operations that have run. trace: operations that ran and events that were
    polled, in order. running: whether an operation runs. schedule: None without a seed."""

    def __init__(self, seed: int | None = None) -> None:
        self.schedule = Schedule(seed) if seed is not None else None
        self.now = 0.0
        self.done = 0
        self.trace: list[tuple[str, str, int]] = []
        self.running = False
        self._lanes: list[Lane] = []
        self._agents = 0
        self._idle = 0

    def agent(self) -> int:
        """The number of a new agent, in the clocks of all devices."""
        self._agents += 1
        return self._agents - 1

    def add(self, lane: Lane) -> None:
        self._lanes.append(lane)

    def moved(self) -> None:
        """Something was launched, or has run."""
        self._idle = 0

    def host_step(self) -> None:
        """Advances time as between two calls of a host, and runs the operations that end by then."""
        assert self.schedule is not None
        self.now += self.schedule.host_step(self._idle)
        self._idle += 1
        while (lane := self.next()) is not None and lane.due <= self.now:
            lane.run()

    def skip(self, until: float) -> bool:
        """Runs the operation that ends next, if it ends before `until`. Returns whether there was one."""
        lane = self.next()
        if lane is None or lane.due > until:
            return False
        self.now = max(self.now, lane.due)
        lane.run()
        return True

    def next(self) -> Lane | None:
        ready = [lane for lane in self._lanes if lane.can_run]
        return min(ready, key=_due) if ready else None

    def describe(self) -> Iterable[str]:
        """The lanes that have something left."""
        return filter(None, map(str, self._lanes))


def _due(lane: Lane) -> float:
    return lane.due
