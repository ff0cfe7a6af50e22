"""Requests, aborts and stalls of mixed traffic, and settings, all chosen by a seed."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.support.traffic_world import World


@dataclass(frozen=True, slots=True)
class TrafficRequest:
    """One request. tick: the round before which it is submitted. leaves: the round before which it is aborted, if it is."""

    id: str
    content: int
    tick: int
    leaves: int | None
    priority: int


@dataclass(frozen=True, slots=True)
class Stall:
    """A stream that stands still for so many seconds from that round on. stream: its number among those that there are."""

    tick: int
    stream: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Scenario:
    settings: Mapping[str, object]
    asks: Sequence[TrafficRequest]
    stalls: Sequence[Stall]


def scenario(world: World, seed: int, requests: int = 8) -> Scenario:
    chance = random.Random(f"{world.name} {seed}")
    settings = {name: chance.choice(list(values)) for name, values in world.knobs.items()}
    horizon = chance.choice((1, 40, 200))
    favourites = [chance.randrange(world.contents) for _ in range(max(2, requests // 2))]
    asks = []
    for number in range(requests):
        # Half of them ask for what others ask for, too: their prompts are in the cache by then, or on the way.
        content = chance.choice(favourites) if chance.random() < 0.5 else chance.randrange(world.contents)
        tick = chance.randrange(horizon)
        leaves = tick + chance.randrange(1, 150) if chance.random() < 0.2 else None
        asks.append(TrafficRequest(str(number), content, tick, leaves, chance.choice((0, 0, 1, 2))))
    stalls = [
        Stall(chance.randrange(horizon + 100), chance.randrange(100), 10 ** chance.uniform(-4, 1))
        for _ in range(chance.choice((0, 0, 2, 6)))
    ]
    return Scenario(settings, asks, stalls)
