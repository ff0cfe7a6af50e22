"""Load shedding: the work of the server under way, and its limits."""

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
        """Counts `count` bytes more. Raises what `check` raises."""
        self.check(count)
        self.change(count)

    def check(self, count: int) -> None:
        """Raises OverloadedError if the bodies under way would hold too much with so many bytes more."""
        self._limits.check_bytes(count)

    def change(self, count: int) -> None:
        """Counts bytes that cannot be refused, or with a negative count bytes that are freed."""
        self.bytes += count
        self._limits.held_bytes += count


class AnswerSlots:
    """Slots of one request among the answers under way: one slot when its body has arrived, before it is parsed, and all slots once
    the number of answers is known."""

    def __init__(self, limits: "ServeLimits") -> None:
        self._limits = limits
        self._answers = 0

    def take(self, answers: int) -> None:
        """Takes slots for this number of answers in total. Raises as `ServeLimits.check`."""
        self._limits.check(answers, held=self._answers)
        self._change(answers)

    def free(self) -> None:
        """The answers have ended. Idempotent."""
        self._change(0)

    def _change(self, answers: int) -> None:
        self._limits.in_flight += answers - self._answers
        self._answers = answers


class ServeLimits:
    """Counts for one event loop's thread. in_flight: answers under way. sessions: realtime ones. refused: requests since the
    start."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self.in_flight = 0
        self.held_bytes = 0
        self.sessions = 0
        self.refused = 0

    def check(self, answers: int = 1, *, held: int = 0) -> None:
        """Raises OverloadedError if too few slots are free for this number of answers, InputError if there are never as many. held:
        those of them that have slots already."""
        most = self._options.max_requests
        if answers > most:
            problem, remedy = f"asks for {counted(answers, 'answer')}", f"ask for at most {most:,} in one request"
            raise InputError("n", problem, remedy, "raise --max-requests")
        others = self.in_flight - held
        if others + answers > most:
            self.refused += 1
            verb = "is" if others == 1 else "are"
            problem = f"{counted(others, 'answer')} {verb} under way, of {most:,}"
            raise OverloadedError("server", problem, "try again later")

    @contextmanager
    def answer_slots(self) -> Iterator[AnswerSlots]:
        """Returns the slots of one request, none at first. They are free again at its end."""
        slots = AnswerSlots(self)
        try:
            yield slots
        finally:
            slots.free()

    @contextmanager
    def session(self) -> Iterator[None]:
        """Counts a realtime session. Raises OverloadedError if `max_sessions` are open."""
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
        """The memory of a request's body, until the request has ended."""
        held = HeldBody(self)
        try:
            yield held
        finally:
            self.held_bytes -= held.bytes
