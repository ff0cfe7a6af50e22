"""Load shedding: what the server has under way, and how much more it takes."""

from collections.abc import Iterator
from contextlib import contextmanager

from omni.errors import InputError, OverloadedError, counted
from omni.serve.options import ServeOptions


class HeldBody:
    """Bytes of one request's body, or of a realtime session."""

    def __init__(self, limits: "ServeLimits") -> None:
        self._limits = limits
        self.bytes = 0

    def add(self, count: int) -> None:
        """Raises OverloadedError if the bodies under way hold too much with it."""
        self._limits.check_bytes(count)
        self.change(count)

    def change(self, count: int) -> None:
        """Counts bytes that cannot be refused, or with a negative count bytes that are freed."""
        self.bytes += count
        self._limits.held_bytes += count


class ServeLimits:
    """Counts for one event loop's thread. in_flight: answers under way. sessions: realtime ones. refused: requests since the
    start."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self.in_flight = 0
        self.held_bytes = 0
        self.sessions = 0
        self.refused = 0

    def check(self, answers: int = 1) -> None:
        """Raises OverloadedError if there is no room for so many more, InputError if there never is."""
        most = self._options.max_requests
        if answers > most:
            problem, remedy = f"asks for {counted(answers, 'answer')}", f"ask for at most {most:,} in one request"
            raise InputError("n", problem, remedy, "raise --max-requests")
        if self.in_flight + answers > most:
            self.refused += 1
            verb = "is" if self.in_flight == 1 else "are"
            problem = f"{counted(self.in_flight, 'answer')} {verb} under way, of {most:,}"
            raise OverloadedError("server", problem, "try again later")

    @contextmanager
    def admit(self, answers: int) -> Iterator[None]:
        """Raises as `check`."""
        self.check(answers)
        self.in_flight += answers
        try:
            yield
        finally:
            self.in_flight -= answers

    @contextmanager
    def session(self) -> Iterator[None]:
        """Counts a realtime session. Raises OverloadedError if there is no room."""
        if self.sessions >= self._options.max_sessions:
            self.refused += 1
            verb = "is" if self.sessions == 1 else "are"
            problem = f"{counted(self.sessions, 'realtime session')} {verb} open"
            raise OverloadedError("server", problem, "try again later")
        self.sessions += 1
        try:
            yield
        finally:
            self.sessions -= 1

    def check_bytes(self, count: int) -> None:
        most = self._options.max_held_bytes
        if self.held_bytes + count > most:
            self.refused += 1
            raise OverloadedError("server", f"{self.held_bytes:,} bytes of requests are held", "try again later")

    @contextmanager
    def body(self) -> Iterator[HeldBody]:
        """The memory of a request's body, until the request is over."""
        held = HeldBody(self)
        try:
            yield held
        finally:
            self.held_bytes -= held.bytes
