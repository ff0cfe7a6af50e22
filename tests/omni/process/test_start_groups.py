"""The order in which engines load, and which error of a start is raised."""

import os
from collections.abc import Iterator
from typing import cast

import pytest

from omni.engine.memory import DeviceShare
from omni.errors import LostRankError
from omni.process import start_group as module
from omni.process.remote import RemoteEngine
from omni.process.start_group import PlacedEngine, StartGroup, rounds_of, wait_ready


def groups_of(*groups: str) -> list[StartGroup]:
    """Each of places with spaces between."""
    made = [StartGroup() for _ in groups]
    for group, places in zip(made, groups, strict=True):
        for place in places.split():
            group.engines.append(PlacedEngine(place, (), DeviceShare(), Starting(), group))
    return made


class Starting(RemoteEngine):
    """An engine with a start of `answers`: a message, its last one (True), or an error."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)
        self.end, self._other = os.pipe()
        for _ in answers:
            os.write(self._other, b".")

    @property
    def descriptor(self) -> int:
        return self.end

    def take_start(self) -> bool:
        os.read(self.end, 1)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def free(self) -> None:
        os.close(self.end)
        os.close(self._other)


@pytest.fixture
def engines() -> Iterator[list[Starting]]:
    made: list[Starting] = []
    yield made
    for engine in made:
        engine.free()


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (["cpu", "cpu/2"], [["cpu"], ["cpu/2"]]),
        (["cuda:0", "cuda:1", "cuda:0/b"], [["cuda:0", "cuda:1"], ["cuda:0/b"]]),
        (["cpu cpu/2"], [["cpu, cpu/2"]]),
        # Rank 0 waits for rank 1 while it loads: both follow what loads on either device before them.
        (["cuda:0", "cuda:0/b cuda:1"], [["cuda:0"], ["cuda:0/b, cuda:1"]]),
        (
            ["cuda:0", "cuda:0/b cuda:1", "cuda:1/b", "cuda:2"],
            [["cuda:0", "cuda:2"], ["cuda:0/b, cuda:1"], ["cuda:1/b"]],
        ),
    ],
)
def test_engines_of_a_device_load_one_by_one_and_ranks_at_once(groups: list[str], expected: list[list[str]]) -> None:
    made = groups_of(*groups)
    assert [[group.name for group in each] for each in rounds_of(made)] == expected
    for group in made:
        for placed in group.engines:
            cast(Starting, placed.engine).free()


def test_a_start_takes_the_messages_of_all(engines: list[Starting]) -> None:
    engines += [Starting(False, False, True), Starting(True), Starting(False, True)]
    wait_ready(engines)
    assert not any(engine.answers for engine in engines)


def test_the_first_error_is_raised_though_others_still_load(engines: list[Starting]) -> None:
    engines += [Starting(False), Starting(False, ValueError("boom"))]
    with pytest.raises(ValueError, match="boom"):
        wait_ready(engines)


def test_a_lost_rank_is_reported_by_its_own_error(engines: list[Starting]) -> None:
    engines += [Starting(LostRankError("rank 1 has ended")), Starting(False, False, ValueError("boom"))]
    with pytest.raises(ValueError, match="boom"):
        wait_ready(engines)


@pytest.mark.parametrize("others", [[False], [True], [LostRankError("rank 0 has ended")]])
def test_a_lost_rank_without_another_error_is_raised_itself(
    engines: list[Starting], others: list[bool | Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOST_RANK_SECONDS", 0.05)
    engines += [Starting(LostRankError("rank 1 has ended")), Starting(*others)]
    with pytest.raises(LostRankError, match="rank 1 has ended"):
        wait_ready(engines)
