"""An engine of whole stages whose process is stopped. A request that waits for it ends, or starts again, within a limit."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni import Omni
from omni.errors import LostPeerError
from omni.process import stop_watch, supervisor
from tests.omni.process.engines import SINGER, WRITER, alive, opened_apart, pids_of
from tests.support.echo_family import eventually
from tests.support.echo_omni import ENDLESS

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]


@pytest.fixture
def omni(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Omni]:
    monkeypatch.setattr(supervisor, "STOPPED_SECONDS", 0.2)
    monkeypatch.setattr(stop_watch, "_LOOK_SECONDS", 0.05)
    with opened_apart(model) as omni:
        started = set(pids_of(omni).values())
        yield omni
        started |= set(pids_of(omni).values())
    assert eventually(lambda: not any(map(alive, started)))


def test_a_request_that_comes_later_is_answered_by_a_new_one(omni: Omni):
    expected, before = omni.generate("hello", stream=False).text, dict(pids_of(omni))
    os.kill(before[WRITER], signal.SIGSTOP)
    assert omni.generate("hello", stream=False).text == expected
    after = pids_of(omni)
    assert [place for place in before if after[place] != before[place]] == [WRITER]


def test_a_request_with_output_fails(omni: Omni):
    stream = omni.generate("abc", sampling=ENDLESS)
    next(stream)
    pid = pids_of(omni)[SINGER]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(LostPeerError, match=rf"^stage 'singer'.*{pid} was ended since it was stopped for 0.2 s"):
        list(stream)
    assert omni.generate("hello", stream=False).text
