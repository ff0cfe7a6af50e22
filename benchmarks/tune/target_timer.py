"""Times a target of `in_layers.py` with one choice of settings or another: alone, and beside a neighbour."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import beside  # noqa: F401 - for `bench`
import torch
from changed_tables import ChangedTables
from descent import Choice, Setting, shown
from layer_targets import Lookups, lookups
from triton.runtime.errors import TritonError

from bench.replay import Neighbour, captured, seconds_in_turns
from omni.device.kernel_choice import kernels_of
from omni.kernels import VariantRecorder

REPLAYS, REPLAYS_IN_TURNS, TURNS = 9, 25, 3
"""Of each choice alone, of two in turns, and turns beside a neighbour."""
PRIORITY = -1
"""Of a target's stream, as that of a talker."""
CUDA = torch.device("cuda", 0)


class TargetSeconds(NamedTuple):
    """beside, lost: with a neighbour (`SharedSeconds`)."""

    alone: float
    beside: float = 0.0
    lost: float = 0.0

    @property
    def total(self) -> float:
        return self.alone + self.beside + self.lost

    def __str__(self) -> str:
        shared = f" ({1e6 * self.alone:.0f} alone, {1e6 * self.beside:.0f} beside, {1e6 * self.lost:.0f} lost)"
        return f"{1e6 * self.total:.1f}{shared if self.beside else ''}"


class TargetTimer:
    """Times a target. call: the whole target. empty: the same on tensors without contents."""

    def __init__(
        self,
        call: Callable[[], object],
        empty: Callable[[], object],
        rows: int,
        tables: ChangedTables,
        fits: Callable[[str, Setting], bool],
        neighbour: Neighbour | None = None,
    ) -> None:
        self._call, self._empty = call, empty
        self._rows, self._tables, self._fits = rows, tables, fits
        self._neighbour = neighbour

    def seconds(self, choice: Choice) -> float:
        if not all(self._fits(key, setting) for key, setting in choice.items()):
            return float("inf")
        self._tables.use(choice, self._rows)
        try:
            with self._captured() as replay:
                return self._times([replay], REPLAYS)[0].total
        except (TritonError, RuntimeError) as error:
            print(f"    refused: {shown(choice)}: {str(error)[:100]}")
            return float("inf")

    def in_turns(self, one: Choice, other: Choice) -> tuple[float, float]:
        before, after = self.compared(one, other)
        return before.total, after.total

    def compared(self, one: Choice, other: Choice) -> tuple[TargetSeconds, TargetSeconds]:
        """Of both, in turns."""
        self._tables.use(one, self._rows)
        with self._captured() as first:
            self._tables.use(other, self._rows)
            with self._captured() as second:
                before, after = self._times([first, second], REPLAYS_IN_TURNS)
        return before, after

    def _captured(self) -> AbstractContextManager[Callable[[], object]]:
        return captured([self._call], warm=1, tidy=False, priority=PRIORITY)

    def _times(self, runs: Sequence[Callable[[], object]], repeats: int) -> list[TargetSeconds]:
        alone = seconds_in_turns(runs, repeats)
        if self._neighbour is None:
            return list(map(TargetSeconds, alone))
        shared = self._neighbour.seconds_in_turns(runs, TURNS)
        return [TargetSeconds(own, *others) for own, others in zip(alone, shared, strict=True)]

    def look_up(self, choice: Choice) -> Lookups:
        """Launches nothing, so nothing has to be compiled for it."""
        self._tables.use(choice, self._rows)
        with kernels_of(CUDA), VariantRecorder().recording():
            return lookups(self._empty, self._rows)
