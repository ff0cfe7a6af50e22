"""Engines that end, are replaced or cannot connect: the requests that need them fail, the others go on."""

from dataclasses import replace
from unittest.mock import patch

import pytest

from omni.engine import RequestFinished
from omni.engine.request import ConnectPeer
from omni.errors import LostPeerError, OmniError, PluginError
from omni.testing.connectors import Gate
from tests.support.copy_connector import CopyReceiver
from tests.support.fake_graph import Recorder, sound
from tests.support.two_engines import EDGE, HERE, THERE, MemoryLink, TwoEngines, rows

BOTH = ("text", "audio")
GIVEN_UP = OmniError("the client went away")


@pytest.fixture
def two() -> TwoEngines:
    return TwoEngines()


def ended_well(recorder: Recorder) -> bool:
    return isinstance(recorder.outputs[-1], RequestFinished)


def test_a_lost_engine_fails_the_requests_with_stages_there_alone(two: TwoEngines) -> None:
    lost, local = two.submit("lost", *BOTH), two.submit("local", "text")
    two.write("lost", 1)
    held = two.worker("writer").produce("lost", rows(2))
    two.here.connector.sending = False
    two.end(THERE)
    two.settle()
    error = lost[HERE].outputs[-1]
    assert isinstance(error.error, LostPeerError)  # type: ignore[union-attr]
    assert error.error.stage == "speaker"  # type: ignore[union-attr]
    assert "the link to its engine on cpu/2 has ended" in lost[HERE].failure
    assert held.free
    (sender,) = two.here.connector.senders
    assert (sender.lost, sender.out, sender.closed) == (1, set(), False)
    assert two.worker("writer").aborts("lost") == 1
    assert not local[HERE].finished
    two.finish("local", "writer")
    assert ended_well(local[HERE])
    two.here.assert_nothing_left()


@pytest.mark.plants_faults
def test_a_faulty_stage_is_closed_and_the_other_engine_goes_on(two: TwoEngines) -> None:
    shared = two.submit("r", *BOTH)
    two.write("r", 1)
    two.worker("speaker").broken = RuntimeError("a fault of the stage")
    two.settle()
    assert "stage 'speaker' failed while running: RuntimeError: a fault of the stage" in shared[THERE].failure
    later = two.submit("later", *BOTH)
    assert "stage 'speaker' failed while running: it is closed after a fault" in later[THERE].failure
    two.write("later", 1)
    two.settle()
    assert not later[HERE].finished, "the edge has no fault"
    for request_id in ("r", "later"):
        two.here.abort(request_id, later[THERE].outputs[-1].error)  # type: ignore[union-attr]
    two.settle()
    (sender,) = two.here.connector.senders
    assert sender.out == set()
    local = two.submit("local", "text")
    two.finish("local", "writer")
    assert ended_well(local[HERE])


def test_a_stage_goes_on_without_an_engine_that_it_needs_no_more(two: TwoEngines) -> None:
    sinks = two.submit("r", *BOTH)
    two.write("r", 1, 2)
    two.finish("r", "writer")
    assert ended_well(sinks[HERE])
    assert two.worker("speaker").ended("r") == [EDGE]
    two.end(HERE)
    two.settle()
    assert not sinks[THERE].finished
    two.worker("speaker").produce("r", sound(9))
    two.finish("r", "speaker")
    assert sinks[THERE].chunks == [("audio", 9)]
    assert ended_well(sinks[THERE])
    two.there.assert_nothing_left()


@pytest.mark.parametrize("part", ["the end", "a payload", "a consumer that has not ended"])
def test_a_stage_that_needs_a_lost_engine_fails(two: TwoEngines, part: str) -> None:
    sinks = two.submit("r", *BOTH)
    two.links[HERE].stuck = part == "the end"
    two.there.connector.arriving = part != "a payload"
    two.write("r", 1)
    if part != "a consumer that has not ended":
        two.finish("r", "writer")
    lost, left = (THERE, HERE) if part == "a consumer that has not ended" else (HERE, THERE)
    two.end(lost)
    two.settle()
    stage = "speaker" if left == HERE else "writer"
    problem = f"the link to its engine on {lost} has ended"
    assert sinks[left].failure == f"stage {stage!r} failed while running a request: {problem}"


def test_a_producer_goes_on_without_a_consumer_that_was_done(two: TwoEngines) -> None:
    sinks = two.submit("r", *BOTH)
    two.write("r", 1)
    two.finish("r", "speaker")
    assert ended_well(sinks[THERE])
    two.end(THERE)
    two.settle()
    two.write("r", 2)
    two.finish("r", "writer")
    assert ended_well(sinks[HERE])
    two.here.assert_nothing_left()


def test_the_end_of_a_link_is_reported_once_before_its_requests_fail(two: TwoEngines) -> None:
    sinks, lost = two.submit("r", *BOTH), list[bool]()
    command = ConnectPeer(THERE, two.links[HERE], two.connected[HERE].append, lambda: lost.append(sinks[HERE].finished))
    two.here.orchestrator._peers._connected[THERE] = command
    two.end(THERE)
    two.settle()
    assert lost == [False]
    assert sinks[HERE].finished


def test_a_lost_producer_leaves_payloads_that_are_still_read(two: TwoEngines) -> None:
    sinks = two.submit("r", *BOTH)
    two.write("r", 1)
    (receiver,) = two.there.connector.receivers
    ended = two.end(HERE)
    speaker = two.worker("speaker")
    (feed,) = speaker.fed("r")
    gate = Gate()
    speaker.taken.remove(feed)  # it releases it itself, later
    two.settle()
    assert "writer" in sinks[THERE].failure
    closed = [receiver.closed]
    feed.release(gate)
    two.settle()
    closed.append(receiver.closed)
    gate.open = True
    two.settle()
    assert [*closed, receiver.closed] == [False, False, True], "the consumer reads what it brought"
    two.there.assert_nothing_left()
    assert ended.connector.senders[0].lost == 0


def test_kept_messages_of_a_lost_engine_are_dropped(two: TwoEngines) -> None:
    two.submit_at(HERE, two.request("r", *BOTH))
    two.settle()
    two.write("r", 1)
    (receiver,) = two.there.connector.receivers
    two.end(HERE)
    two.settle()
    assert two.there.kept == []
    assert receiver.closed
    assert len(receiver.discarded) == 3
    two.there.assert_nothing_left()


@pytest.mark.parametrize("place", [HERE, THERE])
def test_a_request_without_an_engine_for_its_stages_is_refused(two: TwoEngines, place: str) -> None:
    other = HERE if place == THERE else THERE
    two.end(place)
    two.settle()
    recorder = two.submit_at(other, two.request("r", *BOTH))
    two.settle()
    stage = "writer" if place == HERE else "speaker"
    assert recorder.failure == f"stage {stage!r} failed while opening a route: no engine runs on {place}"
    assert isinstance(recorder.outputs[-1].error, LostPeerError)  # type: ignore[union-attr]
    two.engines[other].assert_nothing_left()


def test_a_request_with_an_unknown_place_is_refused(two: TwoEngines) -> None:
    for place, stage in ((HERE, "speaker"), (THERE, "writer")):
        request = two.request(stage, *BOTH)
        recorder = two.submit_at(place, replace(request, places={**request.places, stage: "cpu/9"}))
        two.settle()
        assert recorder.failure.endswith("no engine runs on cpu/9")
    two.assert_nothing_left()


def test_a_request_before_the_other_engine_has_said_hello_is_refused() -> None:
    two = TwoEngines(connect=False)
    link, _ = MemoryLink.pair()
    two.there.command_queue.put(ConnectPeer(HERE, link, two.connected[THERE].append))
    recorder = two.submit_at(THERE, two.request("r", *BOTH))
    two.settle()
    assert recorder.failure.endswith(f"no engine runs on {HERE}")
    assert two.connected[THERE] == []


@pytest.mark.parametrize("place", [HERE, THERE])
def test_a_new_engine_takes_the_place_of_a_lost_one(two: TwoEngines, place: str) -> None:
    two.submit("lost", *BOTH)
    two.write("lost", 1)
    two.end(place)
    two.settle()
    two.connect()
    assert two.connected == {HERE: [None, None], THERE: [None, None]}
    sinks = two.submit("next", *BOTH)
    two.write("next", 5)
    assert two.worker("speaker").numbers("next") == [5]
    two.finish("next", "writer", "speaker")
    assert all(ended_well(sink) for sink in sinks.values())
    two.assert_nothing_left()


def test_a_new_connection_replaces_one_whose_end_was_not_noticed(two: TwoEngines) -> None:
    sinks = two.submit("r", *BOTH)
    two.write("r", 1)
    two.engines[THERE] = two._make(THERE)
    two.connect()
    assert "has ended" in sinks[HERE].failure
    two.submit("next", *BOTH)
    two.write("next", 5)
    assert two.worker("speaker").numbers("next") == [5]
    two.finish("next", "writer", "speaker")
    two.assert_nothing_left()


def test_an_engine_that_ends_before_its_hello_is_reported() -> None:
    two = TwoEngines(connect=False)
    one, other = MemoryLink.pair()
    two.there.command_queue.put(ConnectPeer(HERE, one, two.connected[THERE].append))
    two.settle()
    other.close()
    two.settle()
    (error,) = two.connected[THERE]
    assert "the engine on cpu has ended" in str(error)


def test_a_connector_that_cannot_be_opened_fails_alone() -> None:
    two = TwoEngines(connect=False)
    two.there.connector.refused = True
    two.connect()
    (error,) = two.connected[THERE]
    problem = (
        f"edges.writer-speaker.connector: opening the receiver of edge {EDGE!r} failed: OSError: no memory is mapped ("
    )
    assert str(error).startswith(problem)
    recorder = two.submit_at(THERE, two.request("r", *BOTH))
    two.settle()
    assert "no engine runs on cpu" in recorder.failure


def test_a_closed_engine_refuses_a_connection(two: TwoEngines) -> None:
    two.there.engine.close()
    link, _ = MemoryLink.pair()
    two.there.command_queue.put(ConnectPeer(HERE, link, two.connected[THERE].append))
    two.there.engine.tick()
    assert str(two.connected[THERE][-1]) == "stage 'engine' failed while closing: the engine was closed"


def test_a_message_that_waits_for_its_socket_keeps_the_engine_awake(two: TwoEngines) -> None:
    two.submit("r", *BOTH)
    two.links[HERE].stuck = True
    two.write("r", 1)
    busy = [two.here.orchestrator.busy]
    assert two.worker("speaker").fed("r") == []
    two.links[HERE].stuck = False
    two.settle()
    assert [*busy, two.here.orchestrator.busy] == [True, False]
    assert two.worker("speaker").numbers("r") == [1]
    two.finish("r", "writer", "speaker")
    two.assert_nothing_left()


def test_all_ends_are_closed_even_if_some_cannot_be() -> None:
    two = TwoEngines({"seer": THERE, "writer": HERE, "speaker": THERE})
    (sender,) = two.here.connector.senders

    def refuse(receiver: CopyReceiver) -> None:
        raise OSError("the receiver is stuck")

    with patch.object(CopyReceiver, "close", refuse), pytest.raises(PluginError, match=r"closing the receiver .*stuck"):
        two.here.engine.close()
    assert sender.closed
    assert two.links[HERE].closed
    two.here.engine.close()


@pytest.mark.plants_faults
def test_a_piece_that_cannot_be_given_back_closes_its_consumer(two: TwoEngines) -> None:
    two.submit_at(HERE, two.request("r", *BOTH))
    two.settle()
    produced = two.worker("writer").produce("r", rows(1))
    two.settle()

    def refuse(receiver: CopyReceiver, piece: object) -> None:
        raise OSError("the cable is cut")

    with patch.object(CopyReceiver, "discard", refuse):
        two.there.abort("r", GIVEN_UP, two.number("r"))
        two.settle()
    assert two.worker("speaker").closed
    assert produced.free
    late = two.submit("next", *BOTH)
    assert "discarding a payload: OSError: the cable is cut" in late[THERE].failure
    for request_id in ("r", "next"):
        two.here.abort(request_id, GIVEN_UP, two.number(request_id))
    local = two.submit("local", "text")
    two.finish("local", "writer")
    assert ended_well(local[HERE])
    assert two.here.engine.idle


def test_memory_goes_back_to_an_engine_without_requests(two: TwoEngines) -> None:
    """After its request has left, a payload may still be read."""
    two.submit("r", *BOTH)
    two.write("r", 1)
    gate = Gate()
    (feed,) = two.worker("speaker").fed("r")
    two.worker("speaker").taken.remove(feed)
    two.finish("r", "writer", "speaker")
    feed.release(gate)
    two.settle()
    assert two.there.orchestrator.unfinished == 0
    assert two.there.orchestrator.busy
    assert not two.there.engine.idle
    gate.open = True
    two.assert_nothing_left()
