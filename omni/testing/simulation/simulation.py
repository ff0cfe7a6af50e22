"""Drives an engine, or anything that ticks, on a simulated device."""

from bisect import insort
from collections.abc import Callable
from operator import itemgetter

from omni.testing.retries import no_retries
from omni.testing.simulation.device import SimulatedDevice

_SETTLED = 4
"""Consecutive idle rounds after which the device's next operation runs at once."""
_PATIENCE = 64
"""Consecutive idle rounds without pending operations that mean a hang: some components act on every n-th round only."""


class HangError(AssertionError):
    """Work is left, but neither the host nor the device makes progress."""


class Simulation:
    """Ticks until all work is done. The device's seed determines the timing. ticks: rounds so far. tick: runs one round; returns
    whether anything happened. idle: whether all work is done. explain: describes the remaining work, for the report of a hang."""

    def __init__(
        self,
        device: SimulatedDevice,
        tick: Callable[[], bool],
        idle: Callable[[], bool],
        explain: Callable[[], str] = lambda: "",
    ) -> None:
        if device.schedule is None:
            raise ValueError("a simulation needs a device with a seed")
        self.device = device
        self.random = device.schedule.random
        self.ticks = 0
        self._tick = tick
        self._idle = idle
        self._explain = explain
        self._actions: list[tuple[int, str, Callable[[], object]]] = []

    def at(self, tick: int, act: Callable[[], object], name: str = "an action") -> None:
        """Calls `act` before that round, or before the next one if it has passed."""
        insort(self._actions, (tick, name, act), key=itemgetter(0))

    def sometime(self, before: int, act: Callable[[], object], name: str = "an action") -> int:
        """As `at`, before a round that the seed chooses among the next `before`. Returns the round."""
        tick = self.ticks + self.random.randrange(before)
        self.at(tick, act, name)
        return tick

    def run(self) -> None:
        """Runs until all work is done. Raises HangError, and AssertionError for a stage's retry (`no_retries`)."""
        with no_retries():
            self._run()

    def _run(self) -> None:
        quiet = 0
        while True:
            self._act()
            done = self.device.done
            moved = self._tick()
            self.ticks += 1
            self.device.host_step()
            # Operations that ran during the round may be ones that it polled too early.
            quiet = 0 if moved or self.device.done > done else quiet + 1
            if quiet < _SETTLED:
                if not self._actions and self._idle():
                    return
            elif self.device.skip():
                quiet = 0
            elif self._actions:
                self.ticks = max(self.ticks, self._actions[0][0])
            elif self._idle():
                return
            elif quiet >= _PATIENCE:
                raise HangError(self._hang())

    def _act(self) -> None:
        while self._actions and self._actions[0][0] <= self.ticks:
            _, name, act = self._actions.pop(0)
            self.device.trace.append((name, "", self.ticks))
            act()

    def _hang(self) -> str:
        asked: dict[str, str] = {}
        for name, stream, answer in self.device.trace[-100:]:
            if "#" in name and not answer:
                asked[name] = f"{name} asks for an event of stream {stream!r}"
        lines = [
            f"nothing moves after {self.ticks} rounds, {self.device.now:.3f} s",
            self.device.describe(),
            *asked.values(),
            self._explain(),
        ]
        return "\n".join(line for line in lines if line)
