"""The time limit for steps of a cut stage, by an injected clock."""

from dataclasses import replace

import pytest

from omni.errors import LostRankError
from omni.parallel import RankLayout, silent_ranks
from omni.parallel.watch import StepWatch

LIMIT = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def seconds(self) -> float:
        return self.now


def make() -> tuple[Clock, StepWatch]:
    clock = Clock()
    ranks = replace(silent_ranks(1, RankLayout(3)), step_seconds=LIMIT)
    return clock, StepWatch(ranks, clock.seconds)


def look_for(seconds: float, clock: Clock, watch: StepWatch, step: object | None) -> None:
    """Looks ten times a second."""
    watch.look(step)
    for _ in range(round(seconds * 10)):
        clock.now += 0.1
        watch.look(step)


def test_a_step_that_hangs_is_an_error_with_a_remedy() -> None:
    clock, watch = make()
    step = object()
    look_for(LIMIT - 0.1, clock, watch, step)
    with pytest.raises(LostRankError, match=r"^rank 1 of 3 has not completed a step in 60 s, .*; see the logs"):
        look_for(0.3, clock, watch, step)


def test_each_step_has_the_time() -> None:
    clock, watch = make()
    for _ in range(4):
        look_for(0.9 * LIMIT, clock, watch, object())


def test_time_without_a_step_in_flight_does_not_count() -> None:
    clock, watch = make()
    step = object()
    look_for(0.9 * LIMIT, clock, watch, step)
    look_for(2 * LIMIT, clock, watch, None)
    look_for(0.9 * LIMIT, clock, watch, step)


def test_time_in_which_the_host_was_stopped_does_not_count() -> None:
    clock, watch = make()
    step = object()
    watch.look(step)
    for _ in range(20):
        clock.now += 100 * LIMIT
        watch.look(step)


def test_ranks_without_a_limit_wait_for_ever() -> None:
    clock = Clock()
    watch = StepWatch(silent_ranks(0, RankLayout(2)), clock.seconds)
    look_for(100 * LIMIT, clock, watch, object())
