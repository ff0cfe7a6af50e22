"""Observers of launches, and timers of the device's work."""

from contextlib import AbstractContextManager
from typing import Protocol


class ObservedStream(Protocol):
    """A stream, as an observer sees it."""

    @property
    def name(self) -> str: ...


class LaunchObserver(Protocol):
    """Receives every phase that is launched or replayed, and moments (`Device.moment`). Called on the thread that
    drives the device; never waits or launches."""

    def begin(self, stream: ObservedStream, phase: str) -> None:
        """`phase` is about to be enqueued on `stream`. Phases do not nest."""
        ...

    def end(self) -> None:
        """The phase is enqueued, or its enqueueing has failed."""
        ...

    def host_span(self, stream: ObservedStream, name: str, numbers: dict[str, int]) -> AbstractContextManager[object]:
        """As `Device.host_span`."""
        ...

    def host_did(self, stream: str, name: str, since: int, numbers: dict[str, int]) -> None:
        """As `Device.host_did`."""
        ...


class Stamp(Protocol):
    """A moment in a stream."""

    def done(self) -> bool:
        """Whether the stream has reached it. Never blocks."""
        ...


class DeviceTimer(Protocol):
    """Marks moments in a device's streams. Only for devices that run work later than it is launched."""

    def stamp(self, stream: ObservedStream) -> Stamp:
        """A stamp after everything on the stream so far."""
        ...

    def elapsed(self, first: Stamp, second: Stamp) -> int:
        """Nanoseconds between two done stamps; negative if `second` was earlier. Imprecise over more than a second."""
        ...

    def give_back(self, stamp: Stamp) -> None:
        """Returns a stamp for reuse."""
        ...

    def probe(self) -> tuple[Stamp, int, int]:
        """A done stamp of an idle stream, and the host's `perf_counter_ns` before and after it."""
        ...
