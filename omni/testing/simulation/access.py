"""Memory accesses, and reports of races between them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Access:
    """A memory access. tick: of the agent's clock. by: the phase and its number among all launches, or the host.
    operation: torch's operation, or a call."""

    agent: int
    tick: int
    stream: str
    by: str
    launch: int
    operation: str
    writes: bool

    def __str__(self) -> str:
        verb = "writes" if self.writes else "reads"
        who = f"{self.by} (launch {self.launch}, stream {self.stream!r})" if self.launch else self.by
        return f"{who} {verb} by {self.operation}"


@dataclass(frozen=True, slots=True)
class Race:
    """Two unordered accesses, at least one of them a write, or memory freed under a running reader.

    buffer: the buffer of both. byte: the offset in its storage.
    """

    buffer: str
    byte: int
    first: Access
    second: Access

    def __str__(self) -> str:
        return f"unordered: {self.first}\n      and: {self.second}\n      buffer: {self.buffer}, byte {self.byte}"

    @property
    def places(self) -> tuple[str, ...]:
        """The identity of a race: the places of its two accesses, whatever their time."""
        return tuple(
            part for one in (self.first, self.second) for part in (one.stream, one.by, one.operation, str(one.writes))
        )
