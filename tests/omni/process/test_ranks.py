"""A stage that is cut across two engines: they compute together, and start, fail and end together."""

import gc
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest

from omni import CheckpointError, Omni
from omni.errors import LostPeerError, OmniError
from omni.process import remote, supervisor
from tests.omni.process.engines import alive, children, group_of, kill, pids_of
from tests.support.echo_family import eventually
from tests.support.echo_omni import ENDLESS, assert_nothing_held
from tests.support.ranked_family import (
    BREAK_FOLLOWERS,
    BREAK_LEADER,
    STOP_FOLLOWER,
    added,
    ranked_model,
    ranked_plugins,
)
from tests.support.resources import open_files
from tests.support.tiers import SLOW, few

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]
LEADER, FOLLOWER = "cpu", "cpu/2"
CUT: Mapping[str, object] = MappingProxyType(
    {"writer.tensor_parallel": 2, "writer.place": f"{LEADER},{FOLLOWER}", "engine.restart_seconds": 0}
)


@contextmanager
def nothing_left() -> Iterator[None]:
    """No process, thread's file, socket or memory that was opened meanwhile is left."""
    gc.collect()
    before = children(), open_files()
    yield
    gc.collect()
    assert eventually(lambda: (children(), open_files()) == before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ranked_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def lasting(model: Path) -> Iterator[Omni]:
    """The singer runs in the engine of rank 1, so that payloads go from one engine of the stage to the other."""
    settings = {**CUT, "singer.place": FOLLOWER, "engine.restarts": 1000}
    with nothing_left(), Omni(model, device="cpu", plugins=ranked_plugins(), overrides=settings) as omni:
        yield omni


@pytest.fixture
def omni(lasting: Omni) -> Iterator[Omni]:
    assert_adds(lasting)
    yield lasting
    assert_adds(lasting)
    assert_nothing_held(lasting)


def assert_adds(omni: Omni, text: str = "abc") -> None:
    result = omni.generate(text, stream=False)
    assert result.text == added(text)
    assert result.audio is not None


def assert_both_are_new(omni: Omni, before: Mapping[str, int]) -> None:
    assert_adds(omni)
    after = pids_of(omni)
    assert after.keys() == before.keys()
    assert all(after[place] != before[place] for place in (LEADER, FOLLOWER))


def test_a_result_needs_both_ranks(omni: Omni):
    engines = group_of(omni)._supervisor.by_place
    assert engines[FOLLOWER].engine.requests == 0
    steps = engines[FOLLOWER].engine.counters()["writer"]["steps"]
    assert_adds(omni, "abcd")
    assert engines[FOLLOWER].engine.counters()["writer"]["steps"] == steps + 4


def test_ranks_have_the_least_of_their_pages_and_count_once(omni: Omni):
    engines = group_of(omni)._supervisor.by_place
    assert {place: each.engine.memory["writer"].pages for place, each in engines.items()} == {LEADER: 7, FOLLOWER: 7}
    assert group_of(omni).memory["writer"].pages == 7
    assert omni.counters()["writer"] == {"pages": 7}
    assert engines[FOLLOWER].engine.usage()["writer"] == {"rows": 1}
    assert_nothing_held(omni)


@pytest.mark.parametrize("place", [LEADER, FOLLOWER])
def test_a_rank_that_is_killed_takes_the_others_with_it(omni: Omni, place: str, caplog: pytest.LogCaptureFixture):
    """The error names it, and the log has a line for each rank, without the frames of the one that lost the other."""
    before, rank = dict(pids_of(omni)), (LEADER, FOLLOWER).index(place)
    stream = omni.generate("abc", sampling=ENDLESS)
    next(stream)
    os.kill(before[place], signal.SIGKILL)
    problem = (
        rf"rank {rank} of 2 of stage 'writer' \({place}\) ended: its process {before[place]} was killed by SIGKILL"
    )
    with pytest.raises(LostPeerError, match=rf"'writer.*{problem}"):
        list(stream)
    assert_both_are_new(omni, before)
    ends = [record for record in caplog.records if record.name == "omni.process.remote"]
    assert len(ends) == 2
    assert not any(record.exc_info for record in ends)


def test_a_request_without_output_starts_again(omni: Omni):
    before = dict(pids_of(omni))
    os.kill(before[LEADER], signal.SIGSTOP)
    stream = omni.generate("abc")
    assert eventually(lambda: group_of(omni)._supervisor.by_place[LEADER].engine.requests == 1)
    os.kill(before[FOLLOWER], signal.SIGKILL)
    assert "".join(output.text for output in stream) == added("abc")
    assert_both_are_new(omni, before)


@pytest.mark.parametrize("character", few(1, [BREAK_FOLLOWERS, BREAK_LEADER], SLOW))
def test_a_fault_of_one_rank_s_worker_starts_all_again(omni: Omni, character: str):
    before = dict(pids_of(omni))
    with pytest.raises(LostPeerError, match=r"'writer.*RuntimeError: boom"):
        omni.generate("ab" + character, stream=False, sampling=ENDLESS)
    assert_both_are_new(omni, before)


def test_a_rank_that_hangs_is_ended_and_started_again(omni: Omni, monkeypatch: pytest.MonkeyPatch):
    """It has stopped, and does not end by itself: another rank notices."""
    monkeypatch.setattr(supervisor, "LOST_RANK_SECONDS", 0.0)
    before = dict(pids_of(omni))
    with pytest.raises(LostPeerError, match=r"'writer.*LostRankError: a step hangs"):
        omni.generate("ab" + STOP_FOLLOWER, stream=False, sampling=ENDLESS)
    assert eventually(lambda: not any(map(alive, before.values())))
    assert_both_are_new(omni, before)


@pytest.mark.parametrize("stopped", [{FOLLOWER}, {LEADER, FOLLOWER}])
def test_an_engine_that_does_not_close_is_killed(model: Path, stopped: set[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(remote, "_CLOSE_SECONDS", 0.5)
    with nothing_left():
        omni = Omni(model, device="cpu", plugins=ranked_plugins(), overrides=CUT)
        assert_adds(omni)
        pids = dict(pids_of(omni))
        for place in stopped:
            os.kill(pids[place], signal.SIGSTOP)  # as one whose device hangs: it does not answer
        engines = [group_of(omni)._supervisor.by_place[place].engine for place in (LEADER, FOLLOWER)]
        omni.close()
        assert [engine.hung for engine in engines] == [LEADER in stopped, LEADER not in stopped]
        assert not any(map(alive, pids.values()))


@pytest.mark.parametrize("rank", few(1, [1, 0], SLOW))
def test_the_error_of_a_rank_that_cannot_be_loaded_is_raised(model: Path, rank: int):
    with nothing_left(), pytest.raises(CheckpointError, match=r"writer.* this rank cannot be loaded"):
        Omni(model, device="cpu", plugins=ranked_plugins(), overrides={**CUT, "writer.fails_on": rank})


@pytest.mark.slow
def test_other_places_go_on(model: Path):
    settings = {**CUT, "singer.place": "cpu/3", "engine.restarts": 1}
    with nothing_left(), Omni(model, device="cpu", plugins=ranked_plugins(), overrides=settings) as omni:
        for restarted in (True, False):
            assert_adds(omni)
            before = dict(pids_of(omni))
            kill(omni, FOLLOWER)
            if restarted:
                assert_both_are_new(omni, before)
            else:
                with pytest.raises(OmniError, match=r"writer.*it was started again 1 times"):
                    omni.generate("abc", stream=False)
            assert pids_of(omni)["cpu/3"] == before["cpu/3"]
