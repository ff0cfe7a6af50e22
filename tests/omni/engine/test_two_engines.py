"""A request whose stages are in two engines: payloads, ends, credit and errors as in one."""

from collections import deque
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from omni.engine import RequestFinished
from omni.engine.request import ConnectPeer
from omni.errors import LostPeerError, OmniError, PluginError
from omni.payload import Payload
from omni.stage import Pause, Resume
from omni.testing.connectors import Gate
from tests.support.fake_graph import Recorder, Scripted, always, host, sound
from tests.support.tensors import tensors_of
from tests.support.two_engines import (
    EDGE,
    HERE,
    THERE,
    CopyReceiver,
    MemoryLink,
    TwoEngines,
    rows,
    values_of,
)

BOTH = ("text", "audio")
GIVEN_UP = OmniError("the client went away")
CREDIT = 4


@pytest.fixture
def two() -> TwoEngines:
    return TwoEngines()


def write(two: TwoEngines, request_id: str, *numbers: int) -> None:
    for number in numbers:
        two.worker("writer").produce(request_id, rows(number))
    two.settle()


def finish(two: TwoEngines, request_id: str, *stages: str) -> None:
    """The stages are done, one after the other, and have released what they were fed."""
    for stage in stages:
        two.worker(stage).release(request_id)
        two.worker(stage).done(request_id)
        two.settle()


def ended_well(recorder: Recorder) -> bool:
    return isinstance(recorder.outputs[-1], RequestFinished)


def test_each_engine_opens_its_own_stages_with_all_their_sources(two: TwoEngines) -> None:
    two.submit("r", *BOTH, seer=True)
    assert two.worker("seer").opened("r").inputs == {"frontend"}
    assert two.worker("writer").opened("r").inputs == {"frontend", "seer->writer"}
    assert two.worker("speaker").opened("r").inputs == {EDGE}
    assert (list(two.here.workers), list(two.there.workers)) == (["writer", "seer"], ["speaker"])
    assert two.worker("writer").numbers("r") == [0]


def test_payloads_come_whole_and_in_order_and_the_end_comes_last(two: TwoEngines) -> None:
    sinks = two.submit("r", *BOTH)
    sent = [two.worker("writer").produce("r", payload) for payload in (rows(1), host(2), rows(3))]
    two.worker("writer").done("r", "length")
    two.settle()
    speaker = two.worker("speaker")
    assert speaker.numbers("r") == [1, 2, 3]
    for feed, produced in zip(speaker.fed("r"), sent, strict=True):
        assert feed.arrived
        wanted = {name: values_of(tensor) for name, tensor in produced.payload.tensors.items()}
        found = tensors_of(feed.payload)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert speaker.ended("r") == [EDGE]
    assert all(produced.released and produced.free for produced in sent), "they were copied"
    assert sinks[HERE].chunks == [("text", 2)]
    speaker.produce("r", sound(9))
    finish(two, "r", "speaker")
    assert sinks[THERE].chunks == [("audio", 9)]
    assert (sinks[HERE].finished, sinks[THERE].finished) == (["writer"], ["speaker"])
    assert all(ended_well(sink) for sink in sinks.values())
    two.assert_nothing_left()


def test_edges_go_both_ways_at_once() -> None:
    two = TwoEngines({"seer": THERE, "writer": HERE, "speaker": THERE})
    sinks = two.submit("r", *BOTH, seer=True)
    for number in range(4):
        two.worker("seer").produce("r", rows(number))
        two.worker("writer").produce("r", rows(10 + number))
    two.settle()
    finish(two, "r", "seer")
    assert two.worker("writer").numbers("r") == [0, 0, 1, 2, 3]
    assert two.worker("writer").ended("r") == ["frontend", "seer->writer"]
    assert two.worker("speaker").numbers("r") == [10, 11, 12, 13]
    finish(two, "r", "writer", "speaker")
    assert all(ended_well(sink) for sink in sinks.values())
    two.assert_nothing_left()


def test_a_request_of_one_engine_goes_over_no_link(two: TwoEngines) -> None:
    before = two.links[HERE].kinds()
    sinks = two.submit("r", "text")
    write(two, "r", 1)
    finish(two, "r", "writer")
    assert ended_well(sinks[HERE])
    assert two.links[HERE].kinds() == before == ["Hello"]
    two.assert_nothing_left()


def test_a_payload_goes_when_it_is_ready_and_later_ones_may_overtake_it(two: TwoEngines) -> None:
    two.submit("r", *BOTH)
    gate = Gate()
    slow = two.worker("writer").produce("r", rows(1), gate)
    quick = two.worker("writer").produce("r", rows(2))
    two.settle()
    assert (slow.free, quick.free) == (False, True)
    assert two.worker("speaker").fed("r") == [], "delivery keeps the order"
    gate.open = True
    two.settle()
    assert two.worker("speaker").numbers("r") == [1, 2]
    finish(two, "r", "writer", "speaker")
    two.assert_nothing_left()


def test_a_consumer_far_away_pauses_its_producer_and_lets_it_go_on() -> None:
    two = TwoEngines(credit=CREDIT)
    two.submit("r", *BOTH)
    writer, speaker = two.worker("writer"), two.worker("speaker")
    write(two, "r", *range(CREDIT - 1))
    assert writer.pauses("r") == []
    write(two, "r", 9)
    assert writer.pauses("r") == [Pause]
    for number, feed in enumerate(speaker.fed("r"), 1):
        feed.acquire()
        two.settle()
        assert writer.pauses("r") == [Pause] + [Resume] * (number >= CREDIT // 2)
    assert two.links[THERE].kinds() == ["Hello"] + ["AcquiredOut"] * CREDIT
    speaker.release("r")
    two.settle()
    assert two.links[THERE].kinds().count("AcquiredOut") == CREDIT, "each counts once"
    finish(two, "r", "writer", "speaker")
    two.assert_nothing_left()


def test_a_producer_without_tensors_is_held_back_and_nothing_is_lost() -> None:
    """However much it has to say, no more than the credit is at its consumer."""
    two = TwoEngines(credit=CREDIT)
    two.submit("r", *BOTH)
    writer, speaker = two.worker("writer"), two.worker("speaker")
    came, left = list[int](), deque(range(100))
    while left or speaker.fed("r"):
        while left and writer.pauses("r")[-1:] != [Pause]:
            writer.produce("r", host(left.popleft()))
            two.here.engine.tick()
        two.settle()
        assert len(speaker.fed("r")) <= CREDIT + 1, "one was under way"
        came += speaker.numbers("r")
        speaker.release("r")
        two.settle()
    assert came == list(range(100))
    finish(two, "r", "writer", "speaker")
    two.assert_nothing_left()


def test_payloads_that_the_adapter_drops_cost_no_credit() -> None:
    two = TwoEngines(credit=1, adapters={EDGE: always(Scripted([(0, 0)] * 12))})
    two.submit("r", *BOTH)
    for number in range(6):
        two.worker("writer").produce("r", host(number))
    two.settle()
    write(two, "r", *range(6, 12))
    assert two.links[THERE].kinds() == ["Hello"] + ["AcquiredOut"] * 12
    assert two.worker("writer").pauses("r")[-1] is Resume
    finish(two, "r", "writer", "speaker")
    two.assert_nothing_left()


# Messages that come before their request, or after it.


def test_messages_before_their_request_are_kept_and_delivered(two: TwoEngines) -> None:
    request = two.request("r", *BOTH)
    here = two.submit_at(HERE, request)
    two.settle()
    write(two, "r", 1, 2)
    two.worker("writer").done("r")
    two.settle()
    assert ended_well(here)
    assert two.there.kept == ["r"]
    there = two.submit_at(THERE, request)
    two.settle()
    assert two.there.kept == []
    assert two.worker("speaker").numbers("r") == [1, 2]
    assert two.worker("speaker").ended("r") == [EDGE]
    finish(two, "r", "speaker")
    assert ended_well(there)
    two.assert_nothing_left()


def test_messages_are_kept_while_their_request_waits_for_admission() -> None:
    two = TwoEngines(max_active={THERE: 1})
    two.submit("first", *BOTH)
    two.submit("second", *BOTH)
    write(two, "second", 1)
    assert two.there.kept == ["second"]
    assert two.worker("speaker").fed("second") == []
    finish(two, "first", "writer", "speaker")
    assert two.worker("speaker").numbers("second") == [1]
    finish(two, "second", "writer", "speaker")
    two.assert_nothing_left()


def test_messages_are_kept_while_the_queue_holds_their_request(two: TwoEngines) -> None:
    """Requests after it may overtake it there."""
    request = two.request("held", *BOTH)
    two.there.command_queue.held.add("held")
    two.submit_at(HERE, request)
    two.submit("next", *BOTH)
    write(two, "held", 1)
    write(two, "next", 2)
    assert two.there.kept == ["held"]
    two.there.command_queue.held.clear()
    two.submit_at(THERE, request)
    two.settle()
    assert two.worker("speaker").numbers("held") == [1]
    for name in ("held", "next"):
        finish(two, name, "writer", "speaker")
    two.assert_nothing_left()


@pytest.mark.parametrize("how", ["aborted", "refused", "overtaken"])
def test_messages_for_a_request_that_never_comes_are_given_back(two: TwoEngines, how: str) -> None:
    two.submit_at(HERE, two.request("r", *BOTH))
    two.settle()
    write(two, "r", 1, 2)
    assert two.there.kept == ["r"]
    assert two.here.connector.senders[0].out
    if how == "aborted":
        two.there.abort("r", GIVEN_UP, two.number("r"))
    elif how == "refused":
        two.submit_at(THERE, replace(two.request("r", *BOTH), modalities=frozenset({"smell"})))
    else:  # its queue could not read it
        two.submit("next", *BOTH)
    two.settle()
    assert two.there.kept == []
    assert not two.here.connector.senders[0].out
    two.here.abort("r", GIVEN_UP)
    two.here.abort("next", GIVEN_UP)
    two.there.abort("next", GIVEN_UP)
    two.assert_nothing_left()


def test_messages_after_the_end_of_their_request_are_given_back(two: TwoEngines) -> None:
    sinks = two.submit("r", *BOTH)
    two.links[HERE].stuck = True
    write(two, "r", 1, 2)
    two.there.abort("r", GIVEN_UP, two.number("r"))
    two.settle()
    two.links[HERE].stuck = False
    two.settle()
    (receiver,) = two.there.connector.receivers
    assert len(receiver.discarded) == 6, "the structs and tensors of two payloads"
    assert two.there.kept == []
    assert sinks[THERE].failure == str(GIVEN_UP)
    assert not sinks[HERE].over, "the user's side aborts it there too"
    two.here.abort("r", GIVEN_UP)
    two.assert_nothing_left()


# Aborts, consumers that are done early, ends.


@pytest.mark.parametrize("first", [HERE, THERE])
@pytest.mark.parametrize("under_way", [False, True])
def test_an_abort_on_either_side_frees_both(two: TwoEngines, first: str, under_way: bool) -> None:
    sinks, other = two.submit("r", *BOTH), two.submit("other", *BOTH)
    made = [two.worker("writer").produce("r", rows(number)) for number in range(3)]
    two.tick()
    if not under_way:
        two.settle()
    for place in (first, HERE if first == THERE else THERE):
        two.engines[place].abort("r", GIVEN_UP, two.number("r"))
        two.settle()
        assert sinks[place].failure == str(GIVEN_UP)
    assert all(produced.free for produced in made)
    assert two.worker("writer").aborts("r") == two.worker("speaker").aborts("r") == 1
    write(two, "other", 7)
    assert two.worker("speaker").numbers("other") == [7]
    finish(two, "other", "writer", "speaker")
    assert all(ended_well(sink) for sink in other.values())
    two.assert_nothing_left()


def test_an_aborted_producer_gives_up_what_its_consumer_has_not_got(two: TwoEngines) -> None:
    two.submit("r", *BOTH)
    two.there.connector.arriving = False
    write(two, "r", 1)
    (receiver,) = two.there.connector.receivers
    assert len(receiver.pending) == 1
    two.here.abort("r", GIVEN_UP)
    two.settle()
    assert two.links[HERE].kinds()[-1] == "GiveUpOut"
    assert not receiver.pending
    two.there.abort("r", GIVEN_UP)
    two.assert_nothing_left()


def test_a_consumer_that_is_done_early_lets_its_producer_go_on_alone() -> None:
    two = TwoEngines(credit=1)
    sinks = two.submit("r", *BOTH)
    write(two, "r", 1)
    assert two.worker("writer").pauses("r") == [Pause]
    two.worker("speaker").done("r")
    two.settle()
    assert two.links[THERE].kinds() == ["Hello", "LeaveOut"]
    assert ended_well(sinks[THERE])
    assert two.worker("writer").pauses("r") == [Pause, Resume]
    pieces = two.links[HERE].kinds().count("PieceOut")
    late = two.worker("writer").produce("r", rows(2))
    two.settle()
    assert late.free
    assert two.links[HERE].kinds().count("PieceOut") == pieces, "nothing more is sent"
    two.worker("speaker").release("r")
    finish(two, "r", "writer")
    assert ended_well(sinks[HERE])
    two.assert_nothing_left()


def test_messages_for_a_stage_that_is_done_are_given_back() -> None:
    """Its request goes on at another stage there."""
    two = TwoEngines({"seer": HERE, "writer": THERE, "speaker": THERE})
    two.submit("r", *BOTH, seer=True)
    two.links[HERE].stuck = True
    for number in range(2):
        two.worker("seer").produce("r", rows(number))
    two.settle()
    two.worker("writer").release("r")
    two.worker("writer").done("r")
    two.settle()
    two.links[HERE].stuck = False
    two.settle()
    (receiver,) = two.there.connector.receivers
    assert (len(receiver.discarded), len(receiver.pending)) == (6, 0)
    assert two.worker("writer").fed("r") == []
    assert two.worker("speaker").ended("r") == [EDGE]
    finish(two, "r", "seer", "speaker")
    two.assert_nothing_left()


def test_an_engine_keeps_a_request_until_its_payloads_are_sent(two: TwoEngines) -> None:
    sinks = two.submit("r", *BOTH)
    two.here.connector.sending = False
    produced = two.worker("writer").produce("r", rows(1))
    two.worker("writer").done("r")
    two.settle()
    assert sinks[HERE].finished == ["writer"]
    assert not sinks[HERE].over
    assert not produced.free
    assert two.here.orchestrator.unfinished == 1
    two.here.connector.sending = True
    two.settle()
    assert ended_well(sinks[HERE])
    assert two.here.orchestrator.unfinished == 0
    assert two.worker("speaker").numbers("r") == [1]
    assert two.worker("speaker").ended("r") == [EDGE]
    finish(two, "r", "speaker")
    two.assert_nothing_left()


def test_a_request_that_is_aborted_while_it_is_sent_frees_the_rest(two: TwoEngines) -> None:
    sinks = two.submit("r", *BOTH)
    two.here.connector.sending = False
    produced = two.worker("writer").produce("r", rows(1))
    two.worker("writer").done("r")
    two.settle()
    for engine in (two.here, two.there):
        engine.abort("r", GIVEN_UP)
    two.settle()
    assert produced.free
    assert [sink.failure for sink in sinks.values()] == [str(GIVEN_UP)] * 2
    two.assert_nothing_left()


def test_a_failed_adapter_frees_its_request_s_payloads_there() -> None:
    class Torn(Scripted):
        def push(self, payload: Payload) -> list[Payload]:
            raise ValueError("odd payload")

    two = TwoEngines(adapters={EDGE: always(Torn([]))})
    sinks = two.submit("r", *BOTH)
    write(two, "r", 1, 2)
    assert sinks[THERE].failure.startswith(f"stage {EDGE!r} failed while adapting a payload: ValueError: odd payload (")
    assert not sinks[HERE].over
    write(two, "r", 3)
    two.here.abort("r", GIVEN_UP)
    two.assert_nothing_left()


# Engines that end, and new ones.


def test_a_lost_engine_fails_the_requests_with_stages_there_alone(two: TwoEngines) -> None:
    lost, local = two.submit("lost", *BOTH), two.submit("local", "text")
    write(two, "lost", 1)
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
    assert not local[HERE].over
    finish(two, "local", "writer")
    assert ended_well(local[HERE])
    two.here.assert_nothing_left()


@pytest.mark.plants_faults
def test_a_faulty_stage_is_closed_and_the_other_engine_goes_on(two: TwoEngines) -> None:
    shared = two.submit("r", *BOTH)
    write(two, "r", 1)
    two.worker("speaker").broken = RuntimeError("a fault of the stage")
    two.settle()
    assert "stage 'speaker' failed while running: RuntimeError: a fault of the stage" in shared[THERE].failure
    later = two.submit("later", *BOTH)
    assert "stage 'speaker' failed while running: it is closed since a fault" in later[THERE].failure
    for request_id in ("r", "later"):
        two.here.abort(request_id, later[THERE].outputs[-1].error)  # type: ignore[union-attr]
    two.settle()
    (sender,) = two.here.connector.senders
    assert sender.out == set()
    local = two.submit("local", "text")
    finish(two, "local", "writer")
    assert ended_well(local[HERE])


def test_a_stage_goes_on_without_an_engine_that_it_needs_no_more(two: TwoEngines) -> None:
    sinks = two.submit("r", *BOTH)
    write(two, "r", 1, 2)
    finish(two, "r", "writer")
    assert ended_well(sinks[HERE])
    assert two.worker("speaker").ended("r") == [EDGE]
    two.end(HERE)
    two.settle()
    assert not sinks[THERE].over
    two.worker("speaker").produce("r", sound(9))
    finish(two, "r", "speaker")
    assert sinks[THERE].chunks == [("audio", 9)]
    assert ended_well(sinks[THERE])
    two.there.assert_nothing_left()


@pytest.mark.parametrize("part", ["the end", "a payload", "a consumer that has not ended"])
def test_a_stage_that_needs_a_lost_engine_fails(two: TwoEngines, part: str) -> None:
    sinks = two.submit("r", *BOTH)
    two.links[HERE].stuck = part == "the end"
    two.there.connector.arriving = part != "a payload"
    write(two, "r", 1)
    if part != "a consumer that has not ended":
        finish(two, "r", "writer")
    lost, left = (THERE, HERE) if part == "a consumer that has not ended" else (HERE, THERE)
    two.end(lost)
    two.settle()
    stage = "speaker" if left == HERE else "writer"
    problem = f"the link to its engine on {lost} has ended"
    assert sinks[left].failure == f"stage {stage!r} failed while running a request: {problem}"


def test_a_producer_goes_on_without_a_consumer_that_was_done(two: TwoEngines) -> None:
    sinks = two.submit("r", *BOTH)
    write(two, "r", 1)
    finish(two, "r", "speaker")
    assert ended_well(sinks[THERE])
    two.end(THERE)
    two.settle()
    write(two, "r", 2)
    finish(two, "r", "writer")
    assert ended_well(sinks[HERE])
    two.here.assert_nothing_left()


def test_the_end_of_a_connection_is_told_once_before_its_requests_fail(two: TwoEngines) -> None:
    sinks, lost = two.submit("r", *BOTH), list[bool]()
    command = ConnectPeer(THERE, two.links[HERE], two.connected[HERE].append, lambda: lost.append(sinks[HERE].over))
    two.here.orchestrator._peers._connected[THERE] = command
    two.end(THERE)
    two.settle()
    assert lost == [False]
    assert sinks[HERE].over


def test_a_lost_producer_leaves_what_its_consumer_still_reads(two: TwoEngines) -> None:
    sinks = two.submit("r", *BOTH)
    write(two, "r", 1)
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
    write(two, "r", 1)
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


def test_a_request_with_a_place_that_nobody_knows_is_refused(two: TwoEngines) -> None:
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
    write(two, "lost", 1)
    two.end(place)
    two.settle()
    two.connect()
    assert two.connected == {HERE: [None, None], THERE: [None, None]}
    sinks = two.submit("next", *BOTH)
    write(two, "next", 5)
    assert two.worker("speaker").numbers("next") == [5]
    finish(two, "next", "writer", "speaker")
    assert all(ended_well(sink) for sink in sinks.values())
    two.assert_nothing_left()


def test_a_new_connection_replaces_one_whose_end_was_not_noticed(two: TwoEngines) -> None:
    sinks = two.submit("r", *BOTH)
    write(two, "r", 1)
    two.engines[THERE] = two._make(THERE)
    two.connect()
    assert "has ended" in sinks[HERE].failure
    two.submit("next", *BOTH)
    write(two, "next", 5)
    assert two.worker("speaker").numbers("next") == [5]
    finish(two, "next", "writer", "speaker")
    two.assert_nothing_left()


def test_an_engine_that_ends_before_it_says_hello_is_told() -> None:
    two = TwoEngines(connect=False)
    one, other = MemoryLink.pair()
    two.there.command_queue.put(ConnectPeer(HERE, one, two.connected[THERE].append))
    two.settle()
    other.close()
    two.settle()
    (error,) = two.connected[THERE]
    assert "the engine on cpu has ended" in str(error)


def test_a_connector_that_cannot_be_opened_is_told_and_nothing_else_fails() -> None:
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


def test_a_message_that_waits_for_room_keeps_the_engine_awake(two: TwoEngines) -> None:
    two.submit("r", *BOTH)
    two.links[HERE].stuck = True
    write(two, "r", 1)
    busy = [two.here.orchestrator.busy]
    assert two.worker("speaker").fed("r") == []
    two.links[HERE].stuck = False
    two.settle()
    assert [*busy, two.here.orchestrator.busy] == [True, False]
    assert two.worker("speaker").numbers("r") == [1]
    finish(two, "r", "writer", "speaker")
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
    finish(two, "local", "writer")
    assert ended_well(local[HERE])
    assert two.here.engine.idle


def test_memory_goes_back_to_an_engine_without_requests(two: TwoEngines) -> None:
    """After its request has left, a payload may still be read."""
    two.submit("r", *BOTH)
    write(two, "r", 1)
    gate = Gate()
    (feed,) = two.worker("speaker").fed("r")
    two.worker("speaker").taken.remove(feed)
    finish(two, "r", "writer", "speaker")
    feed.release(gate)
    two.settle()
    assert two.there.orchestrator.unfinished == 0
    assert two.there.orchestrator.busy
    assert not two.there.engine.idle
    gate.open = True
    two.assert_nothing_left()
