"""Converts the device's times to the host's clock.

A device reports the time between two events in single precision: to 30 ns over half a second, and worse over more. So
times count from a reference event that is renewed. *Probes* relate the two clocks: events on an idle stream that are
known to be complete between two of the host's times.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from omni.device import DeviceTimer, Stamp

_RENEW = 500_000_000
"""Nanoseconds after which a reference is renewed."""
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
        """The fit, moved so that no phase runs before its launch begins. launches: (host time, device time) pairs.

        The middle of a probe's two host times is an estimate; the order of launch and run is certain.
        """
        early = max((began - self.host(start) for began, start in launches), default=0)
        return self if early <= 0 else Fit(self.origin + early, self.rate, self.error)


class DeviceClock:
    """Times of events, in nanoseconds since the first probe."""

    def __init__(self, timer: DeviceTimer) -> None:
        self._timer = timer
        self._reference, self._middle, self._width = self._probe()
        self._at = 0

    def time(self, stamp: Stamp) -> int:
        return self._at + self._timer.elapsed(self._reference, stamp)

    def refer(self, stamp: Stamp, at: int) -> bool:
        """Makes `stamp`, at time `at`, the reference if the present one is old. Returns whether it keeps the stamp."""
        if at - self._at < _RENEW:
            return False
        self._timer.give_back(self._reference)
        self._reference, self._at = stamp, at
        return True

    def fit(self) -> Fit:
        """The host's clock as a function of the device's, between the first probe and new ones."""
        stamp, middle, width = self._probe()
        device, width = self.time(stamp), max(self._width, width)
        # Over a short time the probes' errors exceed the drift of the clocks.
        rate = (middle - self._middle) / device if device > 1000 * width else 1.0
        return Fit(self._middle, rate, width // 2)

    def _probe(self) -> tuple[Stamp, int, int]:
        """An event, the middle of the host's times before and after it, and the time between these."""
        probes = (self._timer.probe() for _ in range(_PROBES))
        stamp, before, after = min(probes, key=lambda probe: probe[2] - probe[1])
        return stamp, (before + after) // 2, after - before
