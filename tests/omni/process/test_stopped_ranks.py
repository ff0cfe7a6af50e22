"""A rank whose process is stopped at rest has no effect. A later request ends, or starts again, within a limit."""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni import Omni, SamplingParams
from omni.errors import LostPeerError
from omni.process import stop_watch, supervisor
from tests.omni.process.engines import alive, pids_of
from tests.omni.process.test_cut_models import pipelined
from tests.support.echo_family import eventually
from tests.support.plugins import plugins_of
from tests.support.tiers import SLOW, few
from tests.support.tiny_text import write_chat_model

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]
PLACES = ("cpu", "cpu/2", "cpu/3")
"""Of rank 0 with the last layer, the middle one, and the one with the first layer."""
ASKED = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=900, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("model"), layers=3)


@pytest.fixture
def omni(model: Path) -> Iterator[Omni]:
    """All of its processes are gone at the end."""
    settings = {**pipelined("text", *PLACES), "engine.restart_seconds": 0}
    with Omni(model, device="cpu", plugins=plugins_of("ar", "local", "shm", "text"), overrides=settings) as omni:
        started = set(pids_of(omni).values())
        yield omni
        started |= set(pids_of(omni).values())
    assert eventually(lambda: not any(map(alive, started)))


def answer(omni: Omni) -> str:
    return omni.generate("hello", stream=False, sampling=ASKED).text


@pytest.fixture
def watched_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STOPPED_SECONDS", 0.2)
    monkeypatch.setattr(stop_watch, "_LOOK_SECONDS", 0.05)


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only by the other ranks."""
    monkeypatch.setattr(supervisor, "STOPPED_SECONDS", float("inf"))


def assert_request_starts_again(omni: Omni, place: str, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    """A request while the process of this place is stopped at rest starts again, as do all ranks."""
    expected, before = answer(omni), dict(pids_of(omni))
    os.kill(before[place], signal.SIGSTOP)
    with caplog.at_level(logging.WARNING):
        assert answer(omni) == expected
    after = pids_of(omni)
    assert all(after[at] != before[at] for at in PLACES)
    assert answer(omni) == expected
    (warning,) = [record.getMessage() for record in caplog.records if "it is started again in" in record.getMessage()]
    assert reason in warning


@pytest.mark.usefixtures("watched_closely")
@pytest.mark.parametrize("place", few(1, PLACES, SLOW))
def test_a_request_that_comes_later_is_answered_by_new_ones(
    omni: Omni, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert_request_starts_again(omni, place, caplog, "was ended since it was stopped for 0.2 s while it was awaited")


@pytest.mark.usefixtures("watched_closely")
@pytest.mark.parametrize("place", few(1, PLACES, SLOW))
def test_a_request_with_output_fails(omni: Omni, place: str) -> None:
    expected = answer(omni)
    begun = omni.generate("tell me more", sampling=LONG)
    next(begun)
    pid = pids_of(omni)[place]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(LostPeerError, match=rf"^stage 'text'.*{pid} was ended since it was stopped for 0.2 s"):
        list(begun)
    assert answer(omni) == expected


@pytest.mark.usefixtures("watched_closely")
@pytest.mark.parametrize("place", few(1, PLACES, SLOW))
def test_a_question_that_comes_later_is_answered_by_new_ones(omni: Omni, place: str) -> None:
    """Of parameters that no request had before."""
    expected = answer(omni)
    os.kill(pids_of(omni)[place], signal.SIGSTOP)
    unseen = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=0)
    assert omni.generate("hello", stream=False, sampling=unseen).text == expected


WATCHED = [(place, "was ended since it was stopped for 60 s") for place in PLACES]
UNWATCHED = [(place, "LostRankError") for place in PLACES[1:]]
"""Other ranks notice one that owes them something, so all but rank 0."""


@pytest.mark.slow
@pytest.mark.parametrize(("place", "reason"), [*WATCHED, *UNWATCHED])
def test_a_stopped_rank_is_noticed_with_the_limit_that_users_have(
    place: str, reason: str, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    if (place, reason) in UNWATCHED:
        request.getfixturevalue("unwatched")
    assert_request_starts_again(request.getfixturevalue("omni"), place, caplog, reason)
