"""Who watches what is launched, and how a device tells when it ran."""

from contextlib import AbstractContextManager
from typing import Protocol


class ObservedStream(Protocol):
    """A stream, as far as an observer asks."""

    @property
    def name(self) -> str: ...


class LaunchObserver(Protocol):
    """Is told of every phase that is launched, or replayed as a part of a graph, and of moments (`Device.moment`) as of phases that
    launch nothing. On the thread that drives the device; it never waits and launches nothing."""

    def begin(self, stream: ObservedStream, phase: str) -> None:
        """`phase` is about to be enqueued on `stream`. Phases do not nest."""
        ...

    def end(self) -> None:
        """It is enqueued, or failed to be."""
        ...

    def host_span(self, stream: ObservedStream, name: str, numbers: dict[str, int]) -> AbstractContextManager[object]:
        """As `Device.host_span`."""
        ...

    def host_did(self, stream: str, name: str, since: int, numbers: dict[str, int]) -> None:
        """As `Device.host_did`."""
        ...


class Stamp(Protocol):
    """A moment on a stream. Never blocks."""

    def done(self) -> bool:
        """Whether the stream has come to it."""
        ...


class DeviceTimer(Protocol):
    """Marks moments on a device's streams, for those whose work runs later than it is launched."""

    def stamp(self, stream: ObservedStream) -> Stamp:
        """The moment after everything that is on the stream."""
        ...

    def elapsed(self, first: Stamp, second: Stamp) -> int:
        """Nanoseconds from one to the other, of two that are done; negative if `second` was before. Loses precision over more
        than a second."""
        ...

    def give_back(self, stamp: Stamp) -> None:
        """Nobody will ask for it again."""
        ...

    def probe(self) -> tuple[Stamp, int, int]:
        """A moment on an idle stream that is done, and what the host's `perf_counter_ns` said before and after it."""
        ...
