"""Engines in several processes, and one of them ends: it is started again, and every request has a result or an error."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni import Omni, SamplingParams, StageError
from omni.engine import EngineOutput, EngineRequest, RequestFailed
from omni.errors import LostPeerError
from omni.payload import Payload
from tests.omni.process.engines import (
    OTHER_SINGER,
    SINGER,
    WRITER,
    assert_answers,
    group_of,
    kill,
    opened_apart,
    pids_of,
)
from tests.support.echo_family import BREAK_LOOP, Prompt, eventually
from tests.support.echo_omni import ENDLESS, assert_nothing_held

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]


@pytest.fixture(scope="module")
def lasting(model: Path) -> Iterator[Omni]:
    """For tests after which all engines run: their start takes longer than such a test."""
    with opened_apart(model, {"engine.restarts": 1000}) as omni:
        yield omni


@pytest.fixture
def omni(lasting: Omni) -> Iterator[Omni]:
    """Both engines run without held memory, before and after."""
    assert_answers(lasting)
    assert_nothing_held(lasting)
    yield lasting
    assert_nothing_held(lasting)


@pytest.mark.parametrize("place", [WRITER, SINGER])
def test_a_request_without_output_starts_again(omni: Omni, place: str):
    pid, writer = pids_of(omni)[place], pids_of(omni)[WRITER]
    os.kill(writer, signal.SIGSTOP)  # so there can be no output
    stream = omni.generate("abc")
    assert eventually(lambda: group_of(omni)._supervisor.by_place[WRITER].engine.requests == 1)
    kill(omni, place)
    if place != WRITER:
        os.kill(writer, signal.SIGCONT)
    assert "".join(output.text for output in stream) == "abc"
    assert pids_of(omni)[place] != pid


@pytest.mark.parametrize("place", [WRITER, SINGER])
def test_a_request_with_output_fails(omni: Omni, place: str):
    stage = {WRITER: "writer", SINGER: "singer"}[place]
    stream = omni.generate("abc", sampling=ENDLESS)
    next(stream)
    pid = pids_of(omni)[place]
    kill(omni, place)
    with pytest.raises(LostPeerError, match=rf"'{stage}' .* its process {pid} was killed by SIGKILL"):
        list(stream)
    assert_answers(omni)


def test_rules_about_text_hold_in_an_engine_that_runs_again(omni: Omni):
    stop = {"writer": SamplingParams(stop=("c",))}
    assert omni.generate("abcd", sampling=stop, modalities=("text",), stream=False).text == "ab"
    kill(omni, WRITER)
    assert omni.generate("abcd", sampling=stop, modalities=("text",), stream=False).text == "ab"


def explode(omni: Omni, text: str = "ab") -> None:
    """The loop of the writer's engine fails after `text` was given out."""
    with pytest.raises(
        LostPeerError, match=r"'writer.*' failed while running: its process \d+ failed: RuntimeError: boom"
    ):
        omni.generate(text + BREAK_LOOP, stream=False)


def assert_restarts_after_failures(omni: Omni, times: int = 1) -> None:
    pids = dict(pids_of(omni))
    for _ in range(times):
        explode(omni)
        assert_answers(omni)
    assert {place for place, pid in pids_of(omni).items() if pids[place] != pid} == {WRITER}
    assert_nothing_held(omni)


def test_one_of_several_engines_whose_loop_fails_is_started_again(omni: Omni):
    assert_restarts_after_failures(omni)


def test_a_single_engine_whose_loop_fails_is_restarted(model: Path):
    with opened_apart(model, {"singer.place": WRITER, "engine.process": "process"}) as omni:
        assert_restarts_after_failures(omni, times=2)


def test_stages_that_do_not_use_a_dead_engine_go_on(omni: Omni):
    stream = omni.generate("abc", sampling=ENDLESS, modalities=("text",))
    next(stream)
    kill(omni, SINGER)
    assert_answers(omni)
    next(stream)
    stream.close()


def test_requests_of_another_replica_go_on(model: Path):
    with opened_apart(model, {"engine.restarts": 0}, f"{SINGER},{OTHER_SINGER}") as omni:
        streams = [omni.generate("abc", sampling=ENDLESS) for _ in range(4)]
        for stream in streams:
            next(stream)
        kill(omni, SINGER)
        errors: dict[int, str] = {}
        while len(errors) < 2:  # outputs that a stream has queued still arrive
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


def test_two_engines_that_end_at_once_are_connected_again(omni: Omni):
    kill(omni, WRITER, SINGER)
    assert_answers(omni)


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
