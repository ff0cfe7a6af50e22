"""Traffic of every kind at once, chosen by a seed: joins, aborts, priorities, few blocks, cache hits, slow consumers, stalls.

With any settings and timing of the device, each request has the results that it has alone, one step at a time.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial

import torch

from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.testing import SimulatedDevice, Simulation
from omni.testing.engines import GIVEN_UP
from tests.support.codec_worlds import CodecWorld, PooledCodecWorld
from tests.support.conditioned_world import ConditionedWorld
from tests.support.hidden_worlds import ApartWorld, HiddenWorld, MarkedWorld, PooledWorld, TokensWorld
from tests.support.omni_worlds import OmniWorld, SlackWorld
from tests.support.received import Received
from tests.support.reference import temporary_folder
from tests.support.traffic_events import counting
from tests.support.traffic_scenario import Scenario, Stall, TrafficRequest, scenario
from tests.support.traffic_world import AnyEngine, World


@cache
def make_world(name: str) -> World:
    """With a checkpoint of its own."""
    if name in (OmniWorld.name, SlackWorld.name):
        return OmniWorld() if name == OmniWorld.name else SlackWorld()
    worlds: dict[str, type[HiddenWorld | CodecWorld | ConditionedWorld]] = {
        world.name: world
        for world in (
            HiddenWorld,
            PooledWorld,
            ApartWorld,
            MarkedWorld,
            TokensWorld,
            CodecWorld,
            PooledCodecWorld,
            ConditionedWorld,
        )
    }
    return worlds[name](temporary_folder())


@dataclass(frozen=True, slots=True)
class Played:
    """received: by request. counters: totals of all stages, and what else happened, by `HAPPENS`. ticks: rounds that it took."""

    received: Mapping[str, Received]
    counters: Counter[str]
    ticks: int


def run_seed(world: World, seed: int, device: SimulatedDevice) -> Played:
    """A seed's traffic: right results, no access out of order. Every error names its seed.

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


def play(world: World, plan: Scenario, device: SimulatedDevice) -> Played:
    """Plays it on a simulated device until all work is done. Raises HangError."""
    with torch.inference_mode():
        engine = world.engine(device, plan.settings)
        # Memory that is allocated and filled at the start is complete before the first launch.
        device.synchronize()
        scene = _Scene(world, plan, engine)
        simulation = Simulation(device, scene.tick, lambda: engine.idle, lambda: str(engine.usage()))
        for ask in plan.asks:
            simulation.at(ask.tick, partial(scene.enter, ask), f"submit {ask.id}")
            if ask.leaves is not None:
                simulation.at(ask.leaves, partial(engine.abort, ask.id, GIVEN_UP), f"abort {ask.id}")
        for stall in plan.stalls:
            simulation.at(stall.tick, partial(_stall, device, stall), "stall")
        with counting(scene.happened):
            simulation.run()
        counters = scene.total()
        engine.close()
    return Played(scene.received, counters, simulation.ticks)


class _Scene:
    """The engine of a scenario. received: by request. happened: the events so far."""

    def __init__(self, world: World, plan: Scenario, engine: AnyEngine) -> None:
        self.received = {ask.id: Received() for ask in plan.asks}
        self.happened: Counter[str] = Counter(stalls=len(plan.stalls))
        self._world = world
        self._engine = engine
        self._entered: list[Received] = []

    def enter(self, ask: TrafficRequest) -> None:
        self.happened["joins"] += any(not other.finished for other in self._entered)
        self._entered.append(self.received[ask.id])
        self._engine.submit(self._world.request(ask.content, ask.id, ask.priority), self.received[ask.id].take)

    def tick(self) -> bool:
        moved = self._engine.tick()
        for usage in self._engine.usage().values():
            self.happened["ran ahead"] += usage.get("steps", 0) > 1
            self.happened["constrained"] += usage.get("host_processors", 0)
        return moved

    def total(self) -> Counter[str]:
        self.happened["aborts"] += sum(one.error is GIVEN_UP for one in self.received.values())
        self.happened["scored"] += sum(one.scored for one in self.received.values())
        return self.happened + _totals(self._engine)


def check(world: World, plan: Scenario, played: Played) -> None:
    """Raises AssertionError unless each request had the results that it has alone, or the beginning of them if it was aborted."""
    for ask in plan.asks:
        received = played.received[ask.id]
        assert received.finished, f"{ask} has no end"
        assert received.error is not GIVEN_UP or ask.leaves is not None
        try:
            received.assert_like(alone(world, ask.content))
        except AssertionError as error:
            error.add_note(f"{ask} under {plan.settings}")
            raise


@cache
def alone(world: World, content: int) -> Received:
    """The results of a request of that content by itself, on a device that is never late, one step at a time."""
    received = Received()
    with torch.inference_mode():
        engine = _calm(world)
        engine.submit(world.request(content, f"alone {content}", 0), received.take)
        while not engine.idle:
            engine.tick()
    if received.error is not None:
        raise received.error
    return received


@cache
def _calm(world: World) -> AnyEngine:
    device: Device = CpuDevice()
    return world.engine(device, {name: values[0] for name, values in world.knobs.items()})


def _stall(device: SimulatedDevice, stall: Stall) -> None:
    device.stall(device.streams[stall.stream % len(device.streams)].name, stall.seconds)


def _totals(engine: AnyEngine) -> Counter[str]:
    totals: Counter[str] = Counter()
    for counts in engine.counters().values():
        totals.update(counts)
    return totals
