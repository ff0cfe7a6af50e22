"""Things that raise once, at a chosen place: among them devices, on which a chosen phase of a chosen stage does."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from omni.payload import PageSlice
from omni.stage import Failed, StageWorker
from omni.testing import SimulatedDevice, Simulation
from omni.testing.faults import Faults, FaultyStirredDevice, Owner, planted
from tests.support.frame_bench import PAGE, POISON, FrameBench, frames

T = TypeVar("T")


def spoil(patch: pytest.MonkeyPatch, owner: type, method: str) -> Faults:
    """Makes a method of a class able to fail once. Its place is the names of the two."""
    faults, real = Faults(), vars(owner)[method]

    def spoilt(*arguments: Any) -> Any:
        return faults.call((owner.__name__, method), lambda: real(*arguments), planted)

    patch.setattr(owner, method, spoilt)
    return faults


def simulate(device: SimulatedDevice, tick: Callable[[], bool], finished: Callable[[], bool]) -> Simulation:
    """A simulation of a stage that runs in inference mode, as an engine's do."""

    def inferring() -> bool:
        with torch.inference_mode():
            return tick()

    return Simulation(device, inferring, finished)


def idle(worker: StageWorker) -> bool:
    """Whether it holds no memory."""
    return not worker.inbox and not any(worker.usage().values())


# Streams of frames whose producer writes over its memory as soon as it may, for stages in which something fails half-way.


class LateFrames:
    """Feeds a stage, each payload from memory of its own: page rows, or a tensor every other time."""

    def __init__(self, device: FaultyStirredDevice, bench: FrameBench) -> None:
        self.device = device
        self.bench = bench
        self.owner = Owner(device)
        self._fed = 0

    def play(self, codes: dict[str, NDArray[np.int64]], parts: int = 3) -> None:
        """Requests arrive within a few rounds of each other, and their frames in parts. Until no frame is held or lent."""
        simulation = simulate(self.device, self._turn, lambda: self._finished(codes))
        for name, rows in codes.items():
            tick = 0
            for number, part in enumerate(np.array_split(rows, parts)):
                tick += simulation.random.randrange(20 if not number else 12)
                simulation.at(tick, partial(self.feed, name, part), "feed")
            simulation.at(tick, partial(self.bench.end, name), "end")
        simulation.run()

    def feed(self, name: str, codes: NDArray[np.int64]) -> None:
        self._fed += 1
        if self._fed % 2:
            pages = torch.full((len(codes) // PAGE + 2, PAGE, codes.shape[1]), POISON)
            slots = np.random.default_rng(self._fed).permutation(pages.shape[0] * PAGE)[: len(codes)]
            pages.flatten(0, 1)[torch.from_numpy(slots)] = torch.from_numpy(codes)
            self.owner.lend(self.bench.feed(name, frames(PageSlice(pages, slots))), pages)
        else:
            memory = torch.from_numpy(codes).clone()
            self.owner.lend(self.bench.feed(name, frames(memory)), memory)

    @property
    def failed(self) -> set[str]:
        return {name for name, end in self.bench.ends.items() if isinstance(end, Failed)}

    def _turn(self) -> bool:
        return self.bench.tick() | self.owner.reuse()

    def _finished(self, codes: dict[str, NDArray[np.int64]]) -> bool:
        return len(self.bench.ends) == len(codes) and not self.owner.waiting and idle(self.bench.worker)
