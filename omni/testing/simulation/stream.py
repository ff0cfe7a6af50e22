"""Queues of a simulated device, the events between them, and vector clocks: the known progress of each agent (host or stream).

A clock is a list of ticks by agent, 0 beyond its end. An agent's tick counts its steps: a stream's launches, the host's launches
and records. An agent's action at tick t happened before every event whose clock has at least t for it.
"""

import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TypeAlias

from omni.device import Event, Phase
from omni.testing.simulation.shadow import Image

Clock: TypeAlias = list[int]


def known(clock: Clock, agent: int) -> int:
    return clock[agent] if agent < len(clock) else 0


def join(clock: Clock, other: Clock) -> None:
    if len(clock) < len(other):
        clock.extend([0] * (len(other) - len(clock)))
    for agent, tick in enumerate(other):
        if tick > clock[agent]:
            clock[agent] = tick


def advance(clock: Clock, agent: int, tick: int) -> None:
    """Advances `agent`, the owner of the clock, to `tick`."""
    if len(clock) <= agent:
        clock.extend([0] * (agent + 1 - len(clock)))
    clock[agent] = tick


Answer: TypeAlias = "Callable[[SimulatedEvent, FrameType], bool]"
"""Answers `done` for an event, asked at a place in the code."""


class SimulatedEvent:
    """clock: the actions that happened before it. reached: the stream has reached it, at `reached_at` seconds."""

    __slots__ = ("_answer", "clock", "number", "reached", "reached_at", "stream")

    def __init__(self, answer: Answer, stream: "SimulatedStream", clock: Clock, number: int) -> None:
        self._answer = answer
        self.stream = stream
        self.clock = clock
        self.number = number
        self.reached = False
        self.reached_at = 0.0

    def done(self) -> bool:
        return self._answer(self, sys._getframe(1))

    def __repr__(self) -> str:
        return f"event {self.number} of stream {self.stream.name!r}"


@dataclass(slots=True, eq=False)
class QueuedPhase:
    """A phase in a queue. clock: the actions before it. tick: its own. number: its place among all launches.
    due_after: its duration. inference: whether it runs in inference mode. images: of its host slots."""

    phase: Phase
    buffers: tuple[object, ...]
    number: int
    tick: int
    clock: Clock
    inference: bool
    at: float
    due_after: float
    images: Sequence[Image]

    def __str__(self) -> str:
        return f"{self.phase.__name__} (launch {self.number})"


@dataclass(slots=True, eq=False)
class Mark:
    """The place of an event in a queue."""

    event: SimulatedEvent
    at: float
    due_after: float = 0.0

    def __str__(self) -> str:
        return f"the mark of {self.event!r}"


@dataclass(slots=True, eq=False)
class Barrier:
    """Makes later items of the queue wait for the event. remote: whether another rank brings it about."""

    event: Event
    at: float
    due_after: float = 0.0
    remote: bool = False

    @property
    def open(self) -> bool:
        return self.event.reached if isinstance(self.event, SimulatedEvent) else self.event.done()

    def __str__(self) -> str:
        return f"a wait for {self.event!r}"


Task = QueuedPhase | Mark | Barrier


@dataclass(slots=True, eq=False)
class PausedPhase:
    """A phase that waits for other ranks in the middle, until the event."""

    launched: QueuedPhase
    event: SimulatedEvent


class SimulatedStream:
    """agent: its number in clocks. ran: names of phases that have run. free_at: seconds, end of the last operation. come: events of
    other ranks before its operations so far; its `clock`, of launches, does not have them. paused: the phase that waits in the
    middle, if one does."""

    def __init__(self, name: str, agent: int, pace: float, run: "Callable[[SimulatedStream], None]") -> None:
        """run: runs the first operation of its queue."""
        self.name = name
        self.agent = agent
        self.pace = pace
        self.queue: deque[Task] = deque()
        self.ran: list[str] = []
        self.clock: Clock = []
        self.come: Clock = []
        self.paused: PausedPhase | None = None
        self.tick = 0
        self.free_at = 0.0
        self._run = run

    def run(self) -> None:
        self._run(self)

    def __str__(self) -> str:
        if self.idle:
            return ""
        first = f"in {self.paused.launched}" if self.paused is not None else f"first {self.queue[0]}"
        return f"stream {self.name!r}: {len(self.queue)} pending, {first}"

    @property
    def idle(self) -> bool:
        return not self.queue and self.paused is None

    @property
    def can_run(self) -> bool:
        if self.paused is not None:
            return self.paused.event.reached
        if not self.queue:
            return False
        head = self.queue[0]
        return not isinstance(head, Barrier) or head.open

    @property
    def due(self) -> float:
        """The end of the head operation, in seconds; valid only if it can run."""
        if self.paused is not None:
            return max(self.free_at, self.paused.event.reached_at)
        head = self.queue[0]
        start = max(self.free_at, head.at)
        if isinstance(head, Barrier) and isinstance(head.event, SimulatedEvent):
            start = max(start, head.event.reached_at)
        return start + head.due_after
