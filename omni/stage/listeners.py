"""The listeners of spoken answers. Slack is the length of the delivered sound that a listener has not played yet; playing begins
with the first sound."""

import math
import time
from collections.abc import Callable


class Listener:
    """One listener. A slack below 0 is an underrun: a silence of this length, by which all later sound is delayed. Times are in
    seconds of any monotonic clock.

    played_until: the end of playing the sound given so far; None before the first.
    """

    __slots__ = ("played_until",)

    def __init__(self) -> None:
        self.played_until: float | None = None

    def add_sound(self, now: float, sound: float) -> float | None:
        """Adds a chunk. sound: its length. Returns the slack; None for the first chunk."""
        until = self.played_until
        if until is None:
            self.played_until = now + sound
            return None
        self.played_until = max(until, now) + sound
        return until - now


class Listeners:
    """The listeners of an engine's requests. The engine writes it when sound is given out, and stages read it when they schedule,
    all on the engine's thread.

    A request without a listener (no sound was requested, or another engine makes it) has infinite slack.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, *, short: float = 0.3) -> None:
        """clock: returns the time in seconds. short: the slack in seconds below which it counts as short."""
        self._clock = clock
        self._short = short
        self._listeners: dict[str, Listener] = {}
        self._coming: dict[str, None] = {}
        self._awaited: dict[str, None] = {}
        self._earliest: float | None = math.inf
        """The first `played_until`; None if it has to be searched for."""
        self.anyone = False
        """Whether a request has a listener."""
        self.underruns = 0
        """Number of chunks that arrived after an underrun had begun."""

    def join(self, request_id: str) -> None:
        """Adds a request with a listener."""
        self._listeners[request_id] = Listener()
        self._coming[request_id] = None
        self.anyone = True

    def reach_sound_stages(self, request_id: str) -> None:
        """The request has reached the stages that make its sound. A no-op without a listener, and when repeated."""
        if self._coming and request_id in self._coming:
            del self._coming[request_id]
            self._awaited[request_id] = None

    def add_sound(self, request_id: str, sound: float) -> None:
        """Sound is given out, `sound` seconds. A no-op without a listener."""
        listener = self._listeners.get(request_id)
        if listener is None or not sound:
            return
        slack = listener.add_sound(self._clock(), sound)
        if slack is None:
            self._forget_wait(request_id)
        self._earliest = None
        if slack is not None and slack < 0:
            self.underruns += 1

    def leave(self, request_id: str) -> None:
        """The request has ended. A no-op without a listener."""
        if self._listeners.pop(request_id, None) is not None:
            self._forget_wait(request_id)
            self._earliest = None
            self.anyone = bool(self._listeners)

    def _forget_wait(self, request_id: str) -> None:
        self._coming.pop(request_id, None)
        self._awaited.pop(request_id, None)

    def slack(self, request_id: str) -> float:
        """Seconds of sound ahead of a request's listener: 0 before the first sound, infinite without a listener."""
        listener = self._listeners.get(request_id)
        if listener is None:
            return math.inf
        return 0.0 if listener.played_until is None else listener.played_until - self._clock()

    @property
    def coming(self) -> bool:
        """Whether a request has not reached the stages that make its sound."""
        return bool(self._coming)

    @property
    def awaited(self) -> bool:
        """Whether a request at the stages that make sound has given none yet."""
        return bool(self._awaited)

    @property
    def waiting(self) -> bool:
        """Whether a listener waits for first sound, with its request at any stage."""
        return bool(self._coming or self._awaited)

    @property
    def least(self) -> float:
        """The least slack of the listeners that are playing, in seconds; infinite without any."""
        if self._earliest is None:
            heard = [one.played_until for one in self._listeners.values() if one.played_until is not None]
            self._earliest = min(heard, default=math.inf)
        return self._earliest - self._clock()

    @property
    def short(self) -> bool:
        """Whether the slack of a listener is short."""
        return self.anyone and self.least < self._short
