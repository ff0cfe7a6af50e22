"""Actions that a seed delays: transfers between simulated ranks."""

from collections import deque
from collections.abc import Callable

from omni.testing.simulation.shared_time import Schedule, SharedTime

_AT_ONCE, _VERY_LATE = 0.3, 0.05
"""Shares of transfers that take no time, and that take very long."""


class Delays:
    """pace: mean seconds of actions that take neither no time nor very long."""

    def __init__(self, schedule: Schedule) -> None:
        self._random = schedule.random
        self._pace = schedule.pace()

    def draw(self) -> float:
        kind = self._random.random()
        if kind < _AT_ONCE:
            return 0.0
        if kind > 1 - _VERY_LATE:
            return float(10 ** self._random.uniform(-3, 0))
        return self._random.expovariate(1 / self._pace)

    def chance(self) -> bool:
        return self._random.random() < 0.5


class DelayedLane:
    """Runs actions in order. Each runs at its time, and not before the ones ahead of it."""

    def __init__(self, name: str, shared_time: SharedTime) -> None:
        self._name, self._shared_time = name, shared_time
        self._actions: deque[tuple[Callable[[], float | None], Callable[[], None]]] = deque()
        self._free_at = 0.0
        shared_time.add(self)

    def add(self, at: Callable[[], float | None], act: Callable[[], None]) -> None:
        """at: seconds, None as long as the action is not possible."""
        self._actions.append((at, act))
        self._shared_time.moved()

    @property
    def can_run(self) -> bool:
        return bool(self._actions) and self._actions[0][0]() is not None

    @property
    def due(self) -> float:
        at = self._actions[0][0]()
        assert at is not None
        return max(at, self._free_at)

    def run(self) -> None:
        self._free_at = self.due
        _, act = self._actions.popleft()
        self._shared_time.done += 1
        self._shared_time.moved()
        self._shared_time.trace.append((self._name, "", self._shared_time.done))
        act()

    def __str__(self) -> str:
        return f"{self._name}: {len(self._actions)} pending" if self._actions else ""
