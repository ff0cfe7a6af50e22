"""Engines in several processes of which one ends: it is started again, and every request has a result or an error."""

import gc
import logging
import os
import random
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from omni import Omni, OmniError, StageError
from omni.engine import EngineOutput, EngineRequest, RequestFailed
from omni.errors import LostPeerError
from omni.ipc import Channel
from omni.payload import Payload
from tests.omni.process.engines import alive, children, descriptors, group_of, pids_of, shared_mappings
from tests.support.echo_family import BREAK_LOOP, Prompt, echo_model, echo_plugins, eventually
from tests.support.echo_omni import ENDLESS, assert_nothing_held
from tests.support.patience import PATIENCE_SECONDS
from tests.support.resources import open_files
from tests.support.tiers import SLOW, few

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]
WRITER, SINGER, OTHER_SINGER = "cpu", "cpu/2", "cpu/3"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return echo_model(tmp_path_factory.mktemp("model"))


def opened(model: Path, overrides: Mapping[str, object] = MappingProxyType({}), singer: str = SINGER) -> Omni:
    """The writer in one process, the singer in another."""
    settings = {"singer.place": singer, "engine.restart_seconds": 0}
    return Omni(model, device="cpu", plugins=echo_plugins(), overrides={**settings, **overrides})


def kill(omni: Omni, *places: str) -> None:
    """Returns when the group knows."""
    pids = {place: pids_of(omni)[place] for place in places}
    engines = group_of(omni)._placed.by_place
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: all(not engines[at].up or engines[at].engine.pid != pid for at, pid in pids.items()))


def assert_answers(omni: Omni, text: str = "abc") -> None:
    result = omni.generate(text, stream=False)
    assert result.text == text
    assert result.audio is not None


@pytest.fixture(scope="module")
def lasting(model: Path) -> Iterator[Omni]:
    """For tests after which all engines run: their start takes longer than such a test."""
    with opened(model, {"engine.restarts": 1000}) as omni:
        yield omni


@pytest.fixture
def omni(lasting: Omni) -> Iterator[Omni]:
    """Both engines run and nothing is held, before and after."""
    assert_answers(lasting)
    assert_nothing_held(lasting)
    yield lasting
    assert_nothing_held(lasting)


@pytest.mark.parametrize("place", [WRITER, SINGER])
def test_a_request_of_which_nothing_was_given_out_starts_again(omni: Omni, place: str):
    pid, writer = pids_of(omni)[place], pids_of(omni)[WRITER]
    os.kill(writer, signal.SIGSTOP)  # so nothing can be given out
    stream = omni.generate("abc")
    assert eventually(lambda: group_of(omni)._placed.by_place[WRITER].engine.requests == 1)
    kill(omni, place)
    if place != WRITER:
        os.kill(writer, signal.SIGCONT)
    assert "".join(output.text for output in stream) == "abc"
    assert pids_of(omni)[place] != pid


@pytest.mark.parametrize("place", [WRITER, SINGER])
def test_a_request_of_which_something_was_given_out_fails(omni: Omni, place: str):
    stage = {WRITER: "writer", SINGER: "singer"}[place]
    stream = omni.generate("abc", sampling=ENDLESS)
    next(stream)
    pid = pids_of(omni)[place]
    kill(omni, place)
    with pytest.raises(LostPeerError, match=rf"'{stage}' .* its process {pid} was killed by SIGKILL"):
        list(stream)
    assert_answers(omni)


def explode(omni: Omni, text: str = "ab") -> None:
    """The loop of the writer's engine fails after `text` was given out."""
    with pytest.raises(
        LostPeerError, match=r"'writer.*' failed while running: its process \d+ failed: RuntimeError: boom"
    ):
        omni.generate(text + BREAK_LOOP, stream=False)


def assert_restarts_after_failures(omni: Omni) -> None:
    pids = dict(pids_of(omni))
    for _ in range(2):
        explode(omni)
        assert_answers(omni)
    assert {place for place, pid in pids_of(omni).items() if pids[place] != pid} == {WRITER}
    assert_nothing_held(omni)


def test_one_of_several_engines_whose_loop_fails_is_started_again(omni: Omni):
    assert_restarts_after_failures(omni)


def test_the_only_engine_whose_loop_fails_is_started_again(model: Path):
    with opened(model, {"singer.place": WRITER, "engine.process": "process"}) as omni:
        assert_restarts_after_failures(omni)


def test_a_loop_that_fails_again_and_again_ends_the_restarts(model: Path):
    """A request of which nothing was given out starts again, and the loop fails again."""
    with opened(model, {"engine.restarts": 1}) as omni:
        with pytest.raises(LostPeerError, match="boom"):
            list(omni.generate(BREAK_LOOP))
        with pytest.raises(StageError, match=r"'writer' .*boom; it was started again 1 times; load the model again"):
            omni.generate("abc", stream=False)


def test_a_request_that_always_ends_the_process_leaves_a_restart(model: Path):
    """For the requests of others."""
    with opened(model, {"engine.restarts": 2, "engine.restart_seconds": 0.1}) as omni:
        with pytest.raises(LostPeerError, match="boom"):
            list(omni.generate(BREAK_LOOP))
        assert_answers(omni)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """Of the user's process and the engines, and between engines, in the order in which they were made."""
    made: list[socket.socket] = []
    make = Channel.pair

    def pair() -> tuple[socket.socket, socket.socket]:
        ends = make()
        made.append(ends[0].dup())
        return ends

    monkeypatch.setattr(Channel, "pair", pair)
    yield made
    for end in made:
        end.close()


@pytest.mark.parametrize("given", [False, True])
def test_requests_run_after_a_connection_of_two_engines_has_ended(
    model: Path, connections: list[socket.socket], given: bool
):
    """Both processes run when it ends. One of them is started again."""
    with opened(model) as omni:
        pids = dict(pids_of(omni))
        if not given:
            os.kill(pids[WRITER], signal.SIGSTOP)
        stream = omni.generate("abc", sampling=ENDLESS if given else None)
        if given:
            next(stream)
        else:
            assert eventually(lambda: group_of(omni)._placed.by_place[WRITER].engine.requests == 1)
        connections[2].shutdown(socket.SHUT_RDWR)
        os.kill(pids[WRITER], signal.SIGCONT)
        if given:
            with pytest.raises(LostPeerError):
                list(stream)
        else:
            assert "".join(output.text for output in stream) == "abc"
        assert_answers(omni)
        assert sum(pid != pids[place] for place, pid in pids_of(omni).items()) == 1
        assert_nothing_held(omni)


def test_a_connection_that_ends_without_requests_is_made_again(model: Path, connections: list[socket.socket]):
    with opened(model) as omni:
        pids = set(pids_of(omni).values())
        connections[2].shutdown(socket.SHUT_RDWR)
        assert eventually(lambda: len(pids - children()) == 1)
        assert_answers(omni)
        assert_nothing_held(omni)


def test_stages_that_do_not_use_a_dead_engine_go_on(omni: Omni):
    stream = omni.generate("abc", sampling=ENDLESS, modalities=("text",))
    next(stream)
    kill(omni, SINGER)
    assert_answers(omni)
    next(stream)
    stream.close()


def test_requests_of_another_replica_go_on(model: Path):
    with opened(model, {"engine.restarts": 0}, f"{SINGER},{OTHER_SINGER}") as omni:
        streams = [omni.generate("abc", sampling=ENDLESS) for _ in range(4)]
        for stream in streams:
            next(stream)
        kill(omni, SINGER)
        errors: dict[int, str] = {}
        while len(errors) < 2:  # what a stream has in store still comes
            for number, stream in enumerate(streams):
                try:
                    next(stream)
                except StopIteration:
                    assert number in errors
                except LostPeerError as error:
                    errors[number] = str(error)
        assert all("'singer'" in error and "SIGKILL" in error for error in errors.values())
        for number, stream in enumerate(streams):
            if number not in errors:
                assert not next(stream).finished
                stream.close()
        assert_answers(omni)  # by the other one
        kill(omni, OTHER_SINGER)
        for _ in range(2):
            with pytest.raises(StageError, match=r"singer.*SIGKILL"):
                omni.generate("abc", stream=False)
        assert omni.generate("abc", stream=False, modalities=("text",)).text == "abc"


def test_two_that_end_at_once_find_each_other_again(omni: Omni):
    for _ in range(2):
        kill(omni, WRITER, SINGER)
        assert_answers(omni)


def test_a_request_that_waits_for_a_restart_can_be_given_up(model: Path):
    with opened(model, {"engine.restart_seconds": PATIENCE_SECONDS}) as omni:
        pid = pids_of(omni)[SINGER]
        kill(omni, SINGER)
        assert eventually(lambda: not group_of(omni)._placed.by_place[SINGER].up)
        stream = omni.generate("abc")
        assert eventually(lambda: len(group_of(omni)._waiting) == 1)
        stream.close()
        assert_nothing_held(omni)
        stream = omni.generate("abc")
        assert eventually(lambda: len(group_of(omni)._waiting) == 1)
    with pytest.raises(StageError, match="closed"):
        list(stream)
    assert not alive(pid)


def test_restarts_wait_longer_each_time_and_end(model: Path, caplog: pytest.LogCaptureFixture):
    with (
        caplog.at_level(logging.WARNING),
        opened(model, {"engine.restarts": 2, "engine.restart_seconds": 0.1}) as omni,
    ):
        for _ in range(2):
            kill(omni, SINGER)
            assert_answers(omni)
        kill(omni, SINGER)
        for _ in range(2):
            with pytest.raises(
                StageError, match=r"singer.*SIGKILL; it was started again 2 times; load the model again"
            ):
                omni.generate("abc", stream=False)
        assert omni.generate("abc", stream=False, modalities=("text",)).text == "abc"
    waits = [record.getMessage() for record in caplog.records if "started again in" in record.getMessage()]
    assert [wait.rpartition(" in ")[2] for wait in waits] == ["0.1 s", "0.2 s"]


def test_a_place_that_cannot_start_again_fails_its_requests(tmp_path: Path):
    before = children()
    folder = echo_model(tmp_path)
    with opened(folder, {"engine.restarts": 2}) as omni:
        shutil.rmtree(folder)
        kill(omni, SINGER)
        with pytest.raises(StageError, match=r"singer.*(config\.json|No such file).*started again 2 times"):
            omni.generate("abc", stream=False)
        assert omni.generate("abc", stream=False, modalities=("text",)).text == "abc"
    assert children() == before


@pytest.mark.parametrize("delay", few(1, (0.3, 0.0, 0.6, 1.2, 2.4), SLOW))
def test_closing_does_not_wait_for_an_engine_that_starts(model: Path, delay: float):
    gc.collect()
    before = children(), open_files()
    omni = opened(model)
    kill(omni, SINGER)
    time.sleep(delay)
    omni.close()
    del omni
    gc.collect()
    assert eventually(lambda: (children(), open_files()) == before)


def test_a_request_that_cannot_be_sent_to_one_engine_leaves_the_others(omni: Omni):
    group, outputs = group_of(omni), list[EngineOutput]()
    endless = {"writer": ENDLESS}
    inputs = {
        "writer": [Payload(Prompt(ids=(97,)))],
        "singer": [Payload(Prompt(ids=(97,)), {"x": object()})],  # type: ignore[dict-item]
    }
    for number in range(8):
        request = EngineRequest(f"own {number}", frozenset({"text", "audio"}), inputs, sampling=endless)
        group.submit(request, outputs.append)
    assert len(outputs) == 8
    assert all(isinstance(output, RequestFailed) for output in outputs)
    assert_nothing_held(omni)
    assert_answers(omni)


def test_many_waiting_requests_fail_with_their_engine(model: Path):
    """However many: none of them fails inside of another."""
    with opened(model, {"engine.restarts": 0, "engine.max_active_requests": 4}) as omni:
        os.kill(pids_of(omni)[WRITER], signal.SIGSTOP)
        streams = [omni.generate("abc") for _ in range(1500)]
        assert eventually(lambda: group_of(omni)._placed.by_place[SINGER].engine.requests == 4)
        kill(omni, SINGER)
        os.kill(pids_of(omni)[WRITER], signal.SIGCONT)
        for stream in streams:
            with pytest.raises(StageError, match="SIGKILL"):
                list(stream)
        assert_nothing_held(omni)


def _ask(omni: Omni, prompt: str, modalities: tuple[str, ...], ends: list[str]) -> None:
    try:
        result = omni.generate(prompt, stream=False, modalities=modalities)
        assert result.text == (prompt if "text" in modalities else "")
        ends.append("")
    except OmniError as error:
        ends.append(str(error))


def _held(omni: Omni) -> tuple[list[int], list[int]]:
    pids = pids_of(omni).values()
    return shared_mappings(pids), descriptors(pids)


def _assert_back(omni: Omni, held: tuple[list[int], list[int]]) -> None:
    """All engines run, and hold what they held."""
    assert eventually(lambda: all(placed.up for placed in group_of(omni)._placed.by_place.values()))
    assert eventually(lambda: _held(omni) == held, PATIENCE_SECONDS / 10), (held, _held(omni))


@pytest.mark.parametrize(
    ("place", "seed"),
    few(1, [(place, seed) for seed in range(20) for place in (OTHER_SINGER, WRITER, SINGER)], SLOW),
)
def test_kills_at_random_moments_end_every_request(model: Path, place: str, seed: int):
    chance = random.Random(f"{place} {seed}")
    gc.collect()
    before = children(), open_files(), threading.active_count()
    with opened(model, singer=f"{SINGER},{OTHER_SINGER}") as omni:
        assert_answers(omni)
        held = _held(omni)
        ends: list[str] = []
        threads = [
            threading.Thread(
                target=_ask,
                args=(omni, "abc" * chance.randrange(1, 200), chance.choice((("text",), ("text", "audio"))), ends),
            )
            for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        time.sleep(chance.uniform(0, 0.15))
        os.kill(pids_of(omni)[place], signal.SIGKILL)
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert len(ends) == 16
        lost = "writer" if place == WRITER else "singer"
        assert all(not end or (lost in end and "SIGKILL" in end) for end in ends), ends
        for _ in range(3):
            assert_answers(omni)
        assert_nothing_held(omni)
        _assert_back(omni, held)
        assert set(pids_of(omni).values()) == children() - before[0]
    del omni, thread, threads
    gc.collect()
    assert eventually(lambda: (children(), open_files(), threading.active_count()) == before)
