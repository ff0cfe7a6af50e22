"""The memory of a session."""

from omni.errors import InputError
from omni.serve.limits import HeldBody


class SessionMemory:
    """Bytes of sound, text and pictures of one session. most: of them; `held` counts them for the server."""

    def __init__(self, held: HeldBody, most: int) -> None:
        self._held = held
        self._most = most

    def add(self, count: int, field: str) -> None:
        """Counts `count` bytes more. Raises what `check` raises."""
        self.check(count, field)
        self._held.change(count)

    def check(self, count: int, field: str) -> None:
        """Raises InputError if the session would hold too much with so many bytes more, OverloadedError if the server would."""
        if count <= 0:
            return
        if self._held.bytes + count > self._most:
            problem = f"would have the session hold more than {self._most:,} bytes"
            raise InputError(field, problem, "delete items, clear the buffer, or start a new session")
        self._held.check(count)

    def change(self, count: int) -> None:
        """Counts bytes that cannot be refused, or with a negative count bytes that are freed."""
        self._held.change(count)
