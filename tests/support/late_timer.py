"""A device that runs what is launched at once, and says that it did so later, by a clock of its own."""

import time
from dataclasses import dataclass

from omni.device import DeviceTimer, ObservedStream, Stamp
from omni.device.cpu import CpuDevice


@dataclass(slots=True)
class LateStamp:
    timer: "LateTimer"
    at: int
    number: int

    def done(self) -> bool:
        return self.number < self.timer.reached


class LateTimer:
    """rate, offset: of the device's clock over the host's. late: nanoseconds from a stamp to when the device comes to it.

    given: stamps that were given out and not back. reached: the number of the first stamp that is not done; tests move it.
    """

    def __init__(self, rate: float, offset: int, late: int) -> None:
        self.given: list[LateStamp] = []
        self.stamps = 0
        self.reached = 0
        self._rate = rate
        self._offset = offset
        self._late = late

    def device(self, host: int) -> int:
        return round(host * self._rate) + self._offset

    def stamp(self, stream: ObservedStream) -> LateStamp:
        stamp = LateStamp(self, self.device(time.perf_counter_ns() + self._late), self.stamps)
        self.stamps += 1
        self.given.append(stamp)
        return stamp

    def elapsed(self, first: Stamp, second: Stamp) -> int:
        assert isinstance(first, LateStamp)
        assert isinstance(second, LateStamp)
        assert first.done()
        assert second.done()
        return second.at - first.at

    def give_back(self, stamp: Stamp) -> None:
        self.given = [one for one in self.given if one is not stamp]

    def probe(self) -> tuple[LateStamp, int, int]:
        before = time.perf_counter_ns()
        stamp = LateStamp(self, self.device(time.perf_counter_ns()), -1)
        return stamp, before, time.perf_counter_ns()


class LateDevice(CpuDevice):
    """clock: its timer."""

    def __init__(self, rate: float = 1.0, offset: int = 0, late: int = 1_000_000) -> None:
        super().__init__()
        self.clock = LateTimer(rate, offset, late)

    def timer(self) -> DeviceTimer:
        return self.clock
