"""Engines whose processes are stopped, by an injected clock."""

import pytest

from omni.process.stop_watch import StoppedEngineWatch

LIMIT = 60.0


class StoppedEngine:
    def __init__(self) -> None:
        self.awaited = self.stopped = False
        self.ended = ""

    def give_up(self, why: str = "") -> None:
        self.ended = self.ended or why


class StoppedEngines:
    """Three engines, looked at every second."""

    def __init__(self) -> None:
        self.engines = [StoppedEngine() for _ in range(3)]
        self.running = True
        self.clock = 0.0
        self._watch = StoppedEngineWatch(lambda: self.engines if self.running else [], LIMIT, lambda: self.clock)

    def look(self, seconds: float, step: float = 1.0) -> None:
        for _ in range(round(seconds)):
            self.clock += step
            self._watch.look()

    @property
    def ended(self) -> list[str]:
        return [engine.ended for engine in self.engines]


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("asked", range(3))
def test_one_that_is_stopped_is_ended_when_a_request_has_waited(rank: int, asked: int) -> None:
    watched = StoppedEngines()
    watched.engines[rank].stopped = True
    watched.look(10 * LIMIT)
    assert watched.ended == ["", "", ""], "it is at rest"
    watched.engines[asked].awaited = True
    watched.look(LIMIT + 1)
    assert watched.ended == ["", "", ""]
    watched.look(1)
    expected = ["", "", ""]
    expected[rank] = "since it was stopped for 60 s while it was awaited"
    assert watched.ended == expected


def test_one_that_is_continued_in_time_goes_on() -> None:
    watched = StoppedEngines()
    watched.engines[0].awaited = True
    for _ in range(10):
        watched.engines[0].stopped = True
        watched.look(LIMIT)
        watched.engines[0].stopped = False
        watched.look(1)
    assert watched.ended == ["", "", ""]


def test_engines_that_are_being_started_are_left_alone() -> None:
    watched = StoppedEngines()
    watched.engines[0].awaited = watched.engines[0].stopped = True
    watched.running = False
    watched.look(10 * LIMIT)
    assert watched.ended == ["", "", ""]


def test_time_in_which_the_user_s_process_is_stopped_itself_hardly_counts() -> None:
    watched = StoppedEngines()
    watched.engines[1].awaited = watched.engines[0].stopped = True
    watched.look(20, step=1000.0)
    assert watched.ended == ["", "", ""]
