"""An engine of whole stages whose process is stopped. A request that waits for it ends, or starts again, within a limit."""

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from omni import Omni, SamplingParams
from omni.errors import LostPeerError
from omni.process import stop_watch, supervisor
from omni.process.child import EngineProcess
from omni.process.messages import Start
from omni.process.remote import RemoteEngine
from tests.omni.process.engines import SINGER, WRITER, alive, children, group_of, kill, opened_apart, pids_of
from tests.support.echo_family import eventually
from tests.support.echo_omni import ENDLESS, run_program
from tests.support.patience import PATIENCE_SECONDS

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


def test_one_that_is_stopped_while_it_is_started_again_is_replaced(omni: Omni):
    expected, placed = omni.generate("hello", stream=False).text, group_of(omni)._supervisor.by_place[WRITER]
    kill(omni, WRITER)
    assert eventually(lambda: placed.coming is not None)
    coming = placed.coming
    assert coming is not None
    os.kill(coming.pid, signal.SIGSTOP)
    assert omni.generate("hello", stream=False).text == expected
    assert placed.engine is not coming


def test_one_that_is_stopped_during_the_first_start_fails_it(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor, "STOPPED_SECONDS", 0.2)
    monkeypatch.setattr(stop_watch, "_LOOK_SECONDS", 0.05)
    load, before = RemoteEngine.load, children()

    def stopped(self: RemoteEngine, start: Start, stages: Iterable[str], ranks: str = "") -> None:
        if start.place == WRITER:
            os.kill(self.pid, signal.SIGSTOP)
        load(self, start, stages, ranks)

    monkeypatch.setattr(RemoteEngine, "load", stopped)
    with pytest.raises(LostPeerError, match=r"was ended since it was stopped for 0\.2 s while it was awaited"):
        opened_apart(model)
    assert children() == before


def test_requests_beyond_the_buffer_of_its_socket_end_too(omni: Omni, monkeypatch: pytest.MonkeyPatch):
    prompts = [f"{number:03}" + "x" * 2_000 for number in range(200)]
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    three = SamplingParams(max_tokens=3)
    assert omni.generate("hello", sampling=three, stream=False).text == "hel", "the engine has checked the parameters"
    with monkeypatch.context() as unnoticed:
        unnoticed.setattr(EngineProcess, "stopped", False)
        os.kill(pids_of(omni)[WRITER], signal.SIGSTOP)
        stream = omni.generate(chats, sampling=three)
        assert eventually(lambda: len(group_of(omni)._tracked) == len(chats), PATIENCE_SECONDS / 10)
    texts = [""] * len(chats)
    for output in stream:
        texts[output.index] += output.text
    assert texts == [prompt[:3] for prompt in prompts]


def test_a_request_with_output_fails(omni: Omni):
    stream = omni.generate("abc", sampling=ENDLESS)
    next(stream)
    pid = pids_of(omni)[SINGER]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(LostPeerError, match=rf"^stage 'singer'.*{pid} was ended since it was stopped for 0.2 s"):
        list(stream)
    assert omni.generate("hello", stream=False).text


def test_no_caller_waits_for_one_whose_connection_is_full(model: Path):
    """As clients of a server come and go. The event loop of the server asks for the failure of the engine."""
    done = run_program(f"""
import signal
from tests.support.echo_family import eventually
from tests.support.echo_omni import opened
with opened({str(model)!r}, **{{"engine.process": "process"}}) as omni:
    group = omni._client.engine
    pid, = group.pids.values()
    os.kill(pid, signal.SIGSTOP)
    for number in range(500):
        stream = omni.generate("abc")
        assert eventually(lambda: len(group._tracked) == number + 1)
        stream.close()
        assert eventually(lambda: not omni._client.handles)
    print(group.failure)
    os.kill(pid, signal.SIGCONT)
    print(omni.generate("hello", stream=False).text, list(group.pids.values()) == [pid])
    assert eventually(lambda: omni.idle)
""")
    assert (done.stdout, done.stderr) == ("None\nhello True\n", "")
