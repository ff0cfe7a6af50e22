"""Plays one cell of the matrix: requests that join and leave while others run, on a device that is late."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from omni.engine import Engine
from omni.testing import SimulatedDevice
from omni.testing.simulation import SimulatedStream
from support.matrix_axes import Cell
from support.matrix_family import Family
from support.matrix_sets import GREEDY, SEEDED
from support.matrix_told import LEFT, Told

_SLOW = 3e-4
"""Mean seconds of a phase: the host launches dozens meanwhile."""


class LateDevice(SimulatedDevice):
    """As late as one that has much to do: the host gets as far ahead as it may. Chosen by a seed, as ever."""

    def __init__(self, seed: int, *, check: bool = False) -> None:
        super().__init__(seed, check=check)

    def stream(self, name: str, *, priority: int = 0) -> SimulatedStream:
        stream = super().stream(name, priority=priority)
        stream.pace = max(stream.pace, _SLOW)
        return stream


@dataclass(frozen=True, slots=True)
class Ask:
    """asked: name of its parameters. joins: when all that came before have said so many tokens, or are over. leaves: after so
    many of its own."""

    asked: str
    prompt: int
    joins: int = 0
    leaves: int | None = None
    sample_index: int = 0


@dataclass(slots=True)
class Played:
    """told: by request. counters: by stage. most: steps that a stage had in flight at once, the most there were."""

    told: list[Told]
    counters: Mapping[str, Mapping[str, int]]
    most: Counter[str]

    def preemptions(self, family: Family) -> dict[str, int]:
        """By autoregressive stage."""
        return {stage: self.counters[stage]["preemptions"] for stage in family.stages}


@dataclass(slots=True)
class _Party:
    family: Family
    engine: Engine
    asks: Sequence[Ask]
    told: list[Told] = field(default_factory=list)
    most: Counter[str] = field(default_factory=Counter)
    left: set[int] = field(default_factory=set)

    def tick(self) -> bool:
        moved = self._join() | self._leave()
        moved |= self.engine.tick()
        if moved:
            for stage, usage in self.engine.usage().items():
                self.most[stage] = max(self.most[stage], usage.get("steps", 0))
        return moved

    @property
    def idle(self) -> bool:
        return len(self.told) == len(self.asks) and self.engine.idle

    def _join(self) -> bool:
        said = sum(len(told.tokens) for told in self.told)
        joined = False
        while len(self.told) < len(self.asks):
            number = len(self.told)
            ask = self.asks[number]
            if said < ask.joins and not self.engine.idle:
                break
            self.told.append(Told())
            request = self.family.request(ask.asked, ask.prompt, str(number), ask.sample_index)
            self.engine.submit(request, self.told[number].take)
            joined = True
            if ask.joins:
                break
        return joined

    def _leave(self) -> bool:
        leaving = [
            number
            for number, (ask, told) in enumerate(zip(self.asks, self.told, strict=False))
            if ask.leaves is not None and len(told.tokens) >= ask.leaves and not told.over and number not in self.left
        ]
        for number in leaving:
            self.left.add(number)
            self.engine.abort(str(number), LEFT)
        return bool(leaving)


def party(asked: str) -> list[Ask]:
    """Of those that ask for it, most stay and some leave; others ask for less. Some ask for what was asked before."""
    return [
        Ask(asked, 0),
        Ask(GREEDY, 1),
        Ask(asked, 2, joins=1),
        Ask(asked, 3, joins=3, leaves=3),
        Ask(SEEDED, 3, joins=6),
        Ask(asked, 1, joins=10),
        Ask(GREEDY, 4, joins=12, leaves=6),
        Ask(asked, 4, joins=16),
        Ask(asked, 3, joins=34),
        Ask(SEEDED, 1, joins=45),
        Ask(asked, 2, joins=60),
    ]


def small_party(asked: str) -> list[Ask]:
    """The same of fewer, for a family that has more to do."""
    return [
        Ask(asked, 2),
        Ask(GREEDY, 1),
        Ask(asked, 3, joins=1, leaves=3),
        Ask(asked, 0, joins=3),
        Ask(SEEDED, 4, joins=6),
        Ask(asked, 1, joins=10),
        Ask(SEEDED, 1, joins=40),
    ]


def play(family: Family, settings: Mapping[str, object], asks: Sequence[Ask], device: SimulatedDevice) -> Played:
    """Runs all of them to their ends. At the end nothing is held."""
    with torch.inference_mode():
        engine = family.engine(device, settings)
        device.synchronize()
        group = _Party(family, engine, asks)
        _run(group, device)
        held = {name: {k: n for k, n in usage.items() if n} for name, usage in engine.usage().items()}
        assert not any(held.values()), held
        counters = engine.counters()
        engine.close()
    return Played(group.told, counters, group.most)


def _run(group: _Party, device: SimulatedDevice) -> None:
    """Whenever the host has nothing to do, something is over on the device, or a few things are."""
    assert device.schedule is not None
    chance = device.schedule.random
    while not group.idle:
        if group.tick():
            continue
        ran = [device.skip() for _ in range(chance.randrange(1, 12))]
        # What is over by now may be what was asked for a moment ago.
        assert any(ran) or group.tick() or group.idle, f"stuck with {group.engine.usage()}"


def check(family: Family, cell: Cell, asks: Sequence[Ask], played: Played) -> None:
    """Everybody was told what they are told alone, and the cell was what it says."""
    for number, (ask, told) in enumerate(zip(asks, played.told, strict=True)):
        try:
            assert told.over
            told.assert_like(family.alone(ask.asked, ask.prompt, ask.sample_index))
        except AssertionError as error:
            error.add_note(f"request {number}: {ask} in {cell}, device seed {cell.seed}")
            raise
    assert any(told.error is LEFT for told in played.told)
    preemptions = played.preemptions(family)
    assert (preemptions[family.writer] > 0) == cell.few_blocks, f"{preemptions} preemptions"
    # Prompts that are scored read nothing, and in few blocks what others left is gone soon.
    hits = cell.cached and not (cell.few_blocks and cell.asked == "prompt logprobs")
    for stage in family.stages:
        cached = played.counters[stage]["cached_tokens"]
        assert cached == 0 or cell.cached
        assert cached > 0 or not hits or stage != family.writer, "nothing was found in the cache"
        assert preemptions[stage] == 0 or cell.few_blocks
        # What conditions the talker's steps comes late now and then, but is always there for two.
        least = cell.in_flight if stage == family.writer else min(cell.in_flight, 2)
        assert least <= played.most[stage] <= cell.in_flight, f"{stage}: {played.most[stage]} steps in flight at most"


def run_cell(family: Family, cell: Cell, party: Callable[[str], list[Ask]] = party) -> Played:
    asks = party(cell.asked)
    played = play(family, cell.settings(family.few(cell.asked)), asks, LateDevice(cell.seed))
    check(family, cell, asks, played)
    return played
