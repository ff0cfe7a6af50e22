"""Coordinate descent over launch settings: those of one shape after the other are changed, and the whole target is timed."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from omni_ar.kernels.linear.settings import LinearSettings

GAIN = 0.003
"""The share of the time that a choice must save: less is noise."""
SWEEPS = 2

Setting = LinearSettings | None
Choice = Mapping[str, Setting]
"""Settings by key. None: cuBLAS; for a key of a norm and a product, each on its own."""
Times = Mapping[str, Mapping[Setting, float]]


class ChoiceTimer(Protocol):
    def seconds(self, choice: Choice) -> float:
        """Of the whole target; inf where a setting does not fit the device. Ends the script for one whose results are wrong."""

    def in_turns(self, one: Choice, other: Choice) -> tuple[float, float]:
        """Of both, more exactly than `seconds`."""


class Search(Protocol):
    """What there is to try."""

    def keys(self, present: Choice) -> Sequence[str]:
        """In the order in which they are tried."""

    def moves(self, key: str, present: Choice, times: Times) -> Iterable[Choice]:
        """Settings for `key`, each with those of others that it needs. times: by key, of the settings that were tried alone."""


def descend(
    present: Choice, search: Search, timer: ChoiceTimer, seconds: float, *, clock: Callable[[], float] = time.monotonic
) -> Choice:
    """Returns the best choice that `seconds` sufficed to find, which is `present` or better than it."""
    ends, times = clock() + seconds, dict[str, dict[Setting, float]]()
    for _ in range(SWEEPS):
        before = present
        for key in search.keys(present):
            moves = search.moves(key, present, times)
            present = _improved(present, key, moves, timer, times.setdefault(key, {}), lambda: clock() >= ends)
            if clock() >= ends:
                print(f"    no time left after {seconds:.0f} s")
                return present
        if present == before:
            break
    return present


def _improved(
    present: Choice,
    key: str,
    moves: Iterable[Choice],
    timer: ChoiceTimer,
    times: dict[Setting, float],
    late: Callable[[], bool],
) -> Choice:
    # Timed again for each key: clocks drift.
    least, best, tried = (1 - GAIN) * timer.seconds(present), present, 0
    for move in moves:
        if late():
            break
        choice = {**present, **move}
        took = timer.seconds(choice)
        tried += 1
        if len(move) == 1:
            times[move[key]] = took
        if took < least:
            least, best = took, choice
    if best is present:
        print(f"    {key}: as it was, best of {tried + 1}", flush=True)
        return present
    old, new = timer.in_turns(present, best)
    kept = new < (1 - GAIN) * old
    found = {name: setting for name, setting in best.items() if setting != present[name]}
    result = "" if kept else ", not kept"
    print(f"    {key}: {old * 1e6:.1f} -> {new * 1e6:.1f} us{result}, of {tried + 1}: {shown(found)}", flush=True)
    return best if kept else present


def shown(choice: Choice) -> str:
    return ", ".join(f"{key} {setting or 'none'}" for key, setting in choice.items())
