"""The search over launch settings finds the best of planted times, and what other targets lose by is undone."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import pytest

from tests.benchmarks.linear_settings import ONE, THREE, TWO, US, Setting

pytest.importorskip("triton")


class Planted:
    """A search and its timer. cost: of a choice, in microseconds."""

    def __init__(
        self, settings: Mapping[str, Sequence[Setting]], cost: Callable[[Mapping[str, Setting]], float]
    ) -> None:
        self.settings, self.cost = settings, cost
        self.tried: list[Mapping[str, Setting]] = []
        self.confirmed = 0

    def keys(self, present: Mapping[str, Setting]) -> Sequence[str]:
        return list(self.settings)

    def moves(self, key: str, present: Mapping[str, Setting], times: object) -> Iterable[Mapping[str, Setting]]:
        return [{key: setting} for setting in self.settings[key] if setting != present[key]]

    def seconds(self, choice: Mapping[str, Setting]) -> float:
        self.tried.append(choice)
        return self.cost(choice) * US

    def in_turns(self, one: Mapping[str, Setting], other: Mapping[str, Setting]) -> tuple[float, float]:
        self.confirmed += 1
        return self.cost(one) * US, self.cost(other) * US


def added(costs: Mapping[str, Mapping[Any, float]]) -> Callable[[Mapping[str, Setting]], float]:
    return lambda choice: 1000 + sum(costs[key][setting] for key, setting in choice.items())


def test_the_best_of_planted_times_is_found(tune: Callable[[str], ModuleType]) -> None:
    costs = {"a": {None: 90.0, ONE: 50.0, TWO: float("inf"), THREE: 70.0}, "b": {None: 10.0, ONE: 30.0}}
    planted = Planted({"a": (ONE, TWO, THREE), "b": (ONE, None)}, added(costs))
    found = tune("descent").descend({"a": None, "b": ONE}, planted, planted, 60.0)
    assert found == {"a": ONE, "b": None}
    assert planted.confirmed == 2  # by the first choice for each, which is the best


def test_settings_that_are_tried_together_stay_together(tune: Callable[[str], ModuleType]) -> None:
    """And have no time of their own."""

    class Pairs(Planted):
        times: Mapping[str, Mapping[Setting, float]]

        def moves(self, key: str, present: object, times: Any) -> Iterable[Mapping[str, Setting]]:
            self.times = times
            return [{"a": ONE, "b": ONE}, {"a": TWO}] if key == "a" else []

    pairs = Pairs({"a": (), "b": ()}, added({"a": {None: 90.0, ONE: 50.0, TWO: 20.0}, "b": {None: 0.0, ONE: 0.0}}))
    assert tune("descent").descend({"a": None, "b": None}, pairs, pairs, 60.0) == {"a": TWO, "b": None}
    assert pairs.times["a"].keys() == {TWO}


def test_settings_that_help_only_together_take_two_sweeps(tune: Callable[[str], ModuleType]) -> None:
    def cost(choice: Mapping[str, Setting]) -> float:
        return 1000 - 100 * (choice["b"] == ONE) - 100 * (choice["a"] == choice["b"] == ONE)

    planted = Planted({"a": (ONE,), "b": (ONE,)}, cost)
    assert tune("descent").descend({"a": None, "b": None}, planted, planted, 60.0) == {"a": ONE, "b": ONE}


def test_a_gain_within_the_noise_changes_nothing(tune: Callable[[str], ModuleType]) -> None:
    start = {"a": None}
    for saved, kept in ((2.9, None), (3.1, ONE)):
        planted = Planted({"a": (ONE,)}, added({"a": {None: 0.0, ONE: -saved}}))
        assert tune("descent").descend(start, planted, planted, 60.0) == {"a": kept}
        assert planted.confirmed == (kept is not None)
        assert kept or len(planted.tried) == 2  # no second sweep


def test_a_gain_that_turns_do_not_confirm_is_not_kept(
    tune: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Planted({"a": (ONE,)}, added({"a": {None: 0.0, ONE: -100.0}}))
    monkeypatch.setattr(planted, "in_turns", lambda one, other: (1000 * US, 999 * US))
    assert tune("descent").descend({"a": None}, planted, planted, 60.0) == {"a": None}


def test_the_time_limit_keeps_the_best_so_far(tune: Callable[[str], ModuleType]) -> None:
    costs = {"a": {None: 90.0, ONE: 50.0, TWO: 40.0, THREE: 0.0}, "b": {None: 50.0, ONE: 0.0}}
    planted, ticks = Planted({"a": (ONE, TWO, THREE), "b": (ONE,)}, added(costs)), itertools.count()
    found = tune("descent").descend({"a": None, "b": None}, planted, planted, 3.0, clock=lambda: next(ticks))
    assert found == {"a": TWO, "b": None}
    assert len(planted.tried) == 3


def test_a_change_that_slows_another_target_is_undone(tune: Callable[[str], ModuleType]) -> None:
    without_losses = tune("in_layers").without_losses
    start, best = dict.fromkeys("abc"), dict.fromkeys("abc", ONE)
    own = Planted({}, added({key: {None: 0.0, ONE: -20.0} for key in "abc"}))
    for losses, undone in (({"a": 30.0, "b": 5.0}, "a"), ({"a": 2.0, "b": 2.0}, ""), ({"a": 15.0, "b": 15.0}, "")):
        other = Planted({}, added({key: {None: 0.0, ONE: losses.get(key, 0.0)} for key in "abc"}))
        found = without_losses(start, best, losses, own.in_turns, other.in_turns, "other")
        assert found == {**best, **dict.fromkeys(undone)}
    # A little is no loss, even if it is more than what is gained.
    own, other = (Planted({}, added({key: {None: 0.0, ONE: cost} for key in "abc"})) for cost in (-0.5, 1.6))
    assert without_losses(start, best, "abc", own.in_turns, other.in_turns, "other") == best
