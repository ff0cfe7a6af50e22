"""Phases that read and write a buffer, on streams without an order."""

from collections.abc import Sequence

import torch
from torch import Tensor

from omni.device import Phase
from omni.testing import Race, SimulatedDevice


def fill(x: Tensor) -> None:
    x.fill_(2)


def look(x: Tensor) -> None:
    x.sum()


def copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)


class Pair:
    """Two streams without an order, and a buffer."""

    def __init__(self) -> None:
        self.device = SimulatedDevice()
        self.one, self.two = self.device.stream("one"), self.device.stream("two")
        self.rows = torch.zeros(4, 2)

    def order(self) -> None:
        """Later launches on the second stream follow the first's work so far."""
        self.device.wait(self.two, self.device.record(self.one))

    def finish(self) -> list[Race]:
        self.device.synchronize()
        return self.device.races

    def race(self) -> Race:
        """The only one."""
        (race,) = self.finish()
        return race


def races_of(phases: Sequence[tuple[Phase, Tensor]], inference: bool = False) -> list[Race]:
    """The findings on phases that are launched on streams of their own."""
    with torch.inference_mode(inference):
        device = SimulatedDevice()
        for number, (phase, x) in enumerate(phases):
            device.launch(device.stream(f"stream {number}"), phase, x)
        device.synchronize()
    return device.races
