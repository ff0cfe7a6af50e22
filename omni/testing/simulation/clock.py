"""Vector clocks: the known progress of each agent (the host, each stream). A clock is a list of ticks by agent, 0 beyond its end.
An agent's tick counts its steps: a stream's launches, the host's launches and records. An agent's action at tick t happened before
every event whose clock has at least t for it."""

from typing import TypeAlias

Clock: TypeAlias = list[int]

HOST = 0
"""The host's agent number. Streams are numbered from 1, in the order of their creation."""


def known(clock: Clock, agent: int) -> int:
    """The tick of `agent` that the clock knows."""
    return clock[agent] if agent < len(clock) else 0


def join(clock: Clock, other: Clock) -> None:
    """Adds the knowledge of `other` to `clock`."""
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
