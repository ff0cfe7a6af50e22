"""Who touched memory, and what is reported of two who should not have."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Access:
    """tick: of the agent's clock. by: the phase and its place among all launches, or the host. operation: of torch's, or a call."""

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
    """Two accesses that nothing orders, at least one of them a write, or memory given back under a running reader.

    buffer: what both touch. byte: where in its storage.
    """

    buffer: str
    byte: int
    first: Access
    second: Access

    def __str__(self) -> str:
        return f"unordered: {self.first}\n      and: {self.second}\n      buffer: {self.buffer}, byte {self.byte}"

    @property
    def places(self) -> tuple[str, ...]:
        """What makes it another race than others: who met whom, whenever."""
        return tuple(
            part for one in (self.first, self.second) for part in (one.stream, one.by, one.operation, str(one.writes))
        )
