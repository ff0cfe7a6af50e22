"""Traffic of every kind at once, chosen by a seed: joins, aborts, priorities, few blocks, cache hits, slow consumers, stalls.

Whatever the settings and the device do, each request gets what it gets alone, one step at a time.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from unittest.mock import patch

import torch

from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.engine import Engine
from omni.engine.route import Credit
from omni.errors import StageError
from omni.testing import SimulatedDevice, Simulation
from support.heard import Heard
from support.mixed_worlds import World

LEFT = StageError("request", "being tested", "it was given up")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. tick: the round before which it comes. leaves: the round before which it is given up, if it is."""

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
    asks: Sequence[Ask]
    stalls: Sequence[Stall]


@dataclass(frozen=True, slots=True)
class Played:
    """heard: by request. counters: totals of all stages, and what else happened, by `HAPPENS`. ticks: rounds that it took."""

    heard: Mapping[str, Heard]
    counters: Counter[str]
    ticks: int


HAPPENS = frozenset({"joins", "aborts", "pauses and resumes", "stalls", "constrained", "scored", "ran ahead"})
"""What is counted besides the stages' own totals.

joins, aborts, stalls: while others are there. pauses and resumes: of producers, for slow consumers. constrained: requests that
wait for their host processors, in each round. scored: log-probabilities. ran ahead: rounds with several steps of a stage in flight.
"""


def run_seed(world: World, seed: int, device: SimulatedDevice) -> Played:
    """A seed's traffic: right results, no access out of order. Whatever goes wrong says which seed it was.

    device: of that seed.
    """
    try:
        plan = scenario(world, seed)
        played = play(world, plan, device)
        check(world, plan, played)
        device.assert_no_races()
    except Exception as error:
        error.add_note(f"world {world.name!r}, seed {seed}: this seed alone does the same again")
        raise
    return played


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
        asks.append(Ask(str(number), content, tick, leaves, chance.choice((0, 0, 1, 2))))
    stalls = [
        Stall(chance.randrange(horizon + 100), chance.randrange(100), 10 ** chance.uniform(-4, 1))
        for _ in range(chance.choice((0, 0, 2, 6)))
    ]
    return Scenario(settings, asks, stalls)


def play(world: World, plan: Scenario, device: SimulatedDevice) -> Played:
    """Plays it on a simulated device until nothing is left to do. Raises HangError."""
    with torch.inference_mode():
        engine = world.engine(device, plan.settings)
        # What is allocated and filled at the start is there before anything is launched.
        device.synchronize()
        scene = _Scene(world, plan, engine)
        simulation = Simulation(device, scene.tick, lambda: engine.idle, lambda: str(engine.usage()))
        for ask in plan.asks:
            simulation.at(ask.tick, lambda a=ask: scene.enter(a), f"submit {ask.id}")
            if ask.leaves is not None:
                simulation.at(ask.leaves, lambda a=ask: engine.abort(a.id, LEFT), f"abort {ask.id}")
        for stall in plan.stalls:
            simulation.at(stall.tick, lambda s=stall: _stall(device, s), "stall")
        with _telling(scene.happened):
            simulation.run()
        counters = scene.total()
        engine.close()
    return Played(scene.heard, counters, simulation.ticks)


class _Scene:
    """Where a scenario is played. heard: by request. happened: what was seen so far."""

    def __init__(self, world: World, plan: Scenario, engine: Engine) -> None:
        self.heard = {ask.id: Heard() for ask in plan.asks}
        self.happened: Counter[str] = Counter(stalls=len(plan.stalls))
        self._world = world
        self._engine = engine
        self._entered: list[Heard] = []

    def enter(self, ask: Ask) -> None:
        self.happened["joins"] += any(not other.over for other in self._entered)
        self._entered.append(self.heard[ask.id])
        self._engine.submit(self._world.request(ask.content, ask.id, ask.priority), self.heard[ask.id].take)

    def tick(self) -> bool:
        moved = self._engine.tick()
        for usage in self._engine.usage().values():
            self.happened["ran ahead"] += usage.get("steps", 0) > 1
            self.happened["constrained"] += usage.get("host_processors", 0)
        return moved

    def total(self) -> Counter[str]:
        self.happened["aborts"] += sum(one.error is LEFT for one in self.heard.values())
        self.happened["scored"] += sum(one.scored for one in self.heard.values())
        return self.happened + _totals(self._engine)


@contextmanager
def _telling(happened: Counter[str]) -> Iterator[None]:
    """Counts pauses and resumes of producers."""
    report = Credit.report

    def counted(credit: Credit) -> bool:
        news = report(credit)
        happened["pauses and resumes"] += news
        return news

    with patch.object(Credit, "report", counted):
        yield


def check(world: World, plan: Scenario, played: Played) -> None:
    """Raises AssertionError unless each request was given what it gets alone, or the beginning of it if it was given up."""
    for ask in plan.asks:
        heard = played.heard[ask.id]
        assert heard.over, f"{ask} has no end"
        if heard.error is not None and (heard.error is not LEFT or ask.leaves is None):
            raise heard.error
        try:
            heard.assert_like(alone(world, ask.content))
        except AssertionError as error:
            error.add_note(f"{ask} under {plan.settings}")
            raise


@cache
def alone(world: World, content: int) -> Heard:
    """What a request of that content is given by itself, on a device that is never late, one step at a time."""
    heard = Heard()
    with torch.inference_mode():
        engine = _calm(world)
        engine.submit(world.request(content, f"alone {content}", 0), heard.take)
        while not engine.idle:
            engine.tick()
    if heard.error is not None:
        raise heard.error
    return heard


@cache
def _calm(world: World) -> Engine:
    device: Device = CpuDevice()
    return world.engine(device, {name: values[0] for name, values in world.knobs.items()})


def _stall(device: SimulatedDevice, stall: Stall) -> None:
    device.stall(device.streams[stall.stream % len(device.streams)].name, stall.seconds)


def _totals(engine: Engine) -> Counter[str]:
    totals: Counter[str] = Counter()
    for counts in engine.counters().values():
        totals.update(counts)
    return totals
