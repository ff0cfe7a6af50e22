"""The speed of a simulated device and its host, determined by one seed."""

import random

_PATIENCE = 1.1
"""Growth of the time per poll while nothing else happens, so that seconds of stall need few polls."""
_MAX_IDLE = 250


class Schedule:
    """Draws durations, in seconds of the device's own clock.

    Each stream has a pace of its own, from a hundred times faster than the host to ten times slower, so that seeds
    differ in which side waits. stalls: the share of phases that take as long as thousands of others.
    """

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
