"""Vector clocks: what each agent (the host, each stream) is known to have done.

A clock is a list of ticks by agent; agents beyond its end have tick 0. An agent's tick counts its steps: a stream's launches, the
host's launches and records. Something that an agent did at tick t happened before whatever has a clock that knows tick t of it.
"""

from typing import TypeAlias

Clock: TypeAlias = list[int]

HOST = 0
"""The agent that is the host. Streams are numbered from 1, as they were made."""


def known(clock: Clock, agent: int) -> int:
    """How far `agent` is known to be."""
    return clock[agent] if agent < len(clock) else 0


def join(clock: Clock, other: Clock) -> None:
    """`clock` comes to know what `other` knows."""
    if len(clock) < len(other):
        clock.extend([0] * (len(other) - len(clock)))
    for agent, tick in enumerate(other):
        if tick > clock[agent]:
            clock[agent] = tick


def advance(clock: Clock, agent: int, tick: int) -> None:
    """`agent`, whose clock this is, gets to `tick`."""
    if len(clock) <= agent:
        clock.extend([0] * (agent + 1 - len(clock)))
    clock[agent] = tick
