"""A request whose stages are in two engines: payloads, ends, credit and errors as in one."""

from collections import deque
from dataclasses import replace

import pytest
import torch

from omni.engine import RequestFinished
from omni.errors import OmniError
from omni.payload import Payload
from omni.stage import Pause, Resume
from omni.testing.connectors import Gate
from tests.support.copy_connector import values_of
from tests.support.fake_graph import Recorder, Scripted, always, host, sound
from tests.support.received import tensors_of
from tests.support.two_engines import EDGE, HERE, THERE, TwoEngines, rows

BOTH = ("text", "audio")
GIVEN_UP = OmniError("the client went away")
CREDIT = 4


@pytest.fixture
def two() -> TwoEngines:
    return TwoEngines()


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
    two.finish("r", "speaker")
    assert sinks[THERE].chunks == [("audio", 9)]
    assert (sinks[HERE].finished_stages, sinks[THERE].finished_stages) == (["writer"], ["speaker"])
    assert all(ended_well(sink) for sink in sinks.values())
    two.assert_nothing_left()


def test_edges_go_both_ways_at_once() -> None:
    two = TwoEngines({"seer": THERE, "writer": HERE, "speaker": THERE})
    sinks = two.submit("r", *BOTH, seer=True)
    for number in range(4):
        two.worker("seer").produce("r", rows(number))
        two.worker("writer").produce("r", rows(10 + number))
    two.settle()
    two.finish("r", "seer")
    assert two.worker("writer").numbers("r") == [0, 0, 1, 2, 3]
    assert two.worker("writer").ended("r") == ["frontend", "seer->writer"]
    assert two.worker("speaker").numbers("r") == [10, 11, 12, 13]
    two.finish("r", "writer", "speaker")
    assert all(ended_well(sink) for sink in sinks.values())
    two.assert_nothing_left()


def test_a_request_of_one_engine_goes_over_no_link(two: TwoEngines) -> None:
    before = two.links[HERE].kinds()
    sinks = two.submit("r", "text")
    two.write("r", 1)
    two.finish("r", "writer")
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
    two.finish("r", "writer", "speaker")
    two.assert_nothing_left()


def test_a_remote_consumer_pauses_and_resumes_its_producer() -> None:
    two = TwoEngines(credit=CREDIT)
    two.submit("r", *BOTH)
    writer, speaker = two.worker("writer"), two.worker("speaker")
    two.write("r", *range(CREDIT - 1))
    assert writer.pauses("r") == []
    two.write("r", 9)
    assert writer.pauses("r") == [Pause]
    for number, feed in enumerate(speaker.fed("r"), 1):
        feed.acquire()
        two.settle()
        assert writer.pauses("r") == [Pause] + [Resume] * (number >= CREDIT // 2)
    assert two.links[THERE].kinds() == ["Hello"] + ["AcquiredOut"] * CREDIT
    speaker.release("r")
    two.settle()
    assert two.links[THERE].kinds().count("AcquiredOut") == CREDIT, "each counts once"
    two.finish("r", "writer", "speaker")
    two.assert_nothing_left()


def test_a_producer_without_tensors_is_held_back_and_nothing_is_lost() -> None:
    """Whatever its output, at most the credit is at its consumer."""
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
    two.finish("r", "writer", "speaker")
    two.assert_nothing_left()


def test_payloads_that_the_adapter_drops_cost_no_credit() -> None:
    two = TwoEngines(credit=1, adapters={EDGE: always(Scripted([(0, 0)] * 12))})
    two.submit("r", *BOTH)
    for number in range(6):
        two.worker("writer").produce("r", host(number))
    two.settle()
    two.write("r", *range(6, 12))
    assert two.links[THERE].kinds() == ["Hello"] + ["AcquiredOut"] * 12
    assert two.worker("writer").pauses("r")[-1] is Resume
    two.finish("r", "writer", "speaker")
    two.assert_nothing_left()


# Messages that arrive before their request, or after it.


def test_messages_before_their_request_are_kept_and_delivered(two: TwoEngines) -> None:
    request = two.request("r", *BOTH)
    here = two.submit_at(HERE, request)
    two.settle()
    two.write("r", 1, 2)
    two.worker("writer").done("r")
    two.settle()
    assert ended_well(here)
    assert two.there.kept == ["r"]
    there = two.submit_at(THERE, request)
    two.settle()
    assert two.there.kept == []
    assert two.worker("speaker").numbers("r") == [1, 2]
    assert two.worker("speaker").ended("r") == [EDGE]
    two.finish("r", "speaker")
    assert ended_well(there)
    two.assert_nothing_left()


def test_messages_are_kept_while_their_request_waits_for_admission() -> None:
    two = TwoEngines(max_active={THERE: 1})
    two.submit("first", *BOTH)
    two.submit("second", *BOTH)
    two.write("second", 1)
    assert two.there.kept == ["second"]
    assert two.worker("speaker").fed("second") == []
    two.finish("first", "writer", "speaker")
    assert two.worker("speaker").numbers("second") == [1]
    two.finish("second", "writer", "speaker")
    two.assert_nothing_left()


def test_messages_are_kept_while_the_queue_holds_their_request(two: TwoEngines) -> None:
    """Requests after it may overtake it there."""
    request = two.request("held", *BOTH)
    two.there.command_queue.held.add("held")
    two.submit_at(HERE, request)
    two.submit("next", *BOTH)
    two.write("held", 1)
    two.write("next", 2)
    assert two.there.kept == ["held"]
    two.there.command_queue.held.clear()
    two.submit_at(THERE, request)
    two.settle()
    assert two.worker("speaker").numbers("held") == [1]
    for name in ("held", "next"):
        two.finish(name, "writer", "speaker")
    two.assert_nothing_left()


@pytest.mark.parametrize("how", ["aborted", "refused", "overtaken"])
def test_messages_for_a_request_that_never_comes_are_given_back(two: TwoEngines, how: str) -> None:
    two.submit_at(HERE, two.request("r", *BOTH))
    two.settle()
    two.write("r", 1, 2)
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
    two.write("r", 1, 2)
    two.there.abort("r", GIVEN_UP, two.number("r"))
    two.settle()
    two.links[HERE].stuck = False
    two.settle()
    (receiver,) = two.there.connector.receivers
    assert len(receiver.discarded) == 6, "the structs and tensors of two payloads"
    assert two.there.kept == []
    assert sinks[THERE].failure == str(GIVEN_UP)
    assert not sinks[HERE].finished, "the user's side aborts it there too"
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
    two.write("other", 7)
    assert two.worker("speaker").numbers("other") == [7]
    two.finish("other", "writer", "speaker")
    assert all(ended_well(sink) for sink in other.values())
    two.assert_nothing_left()


def test_an_aborted_producer_gives_up_undelivered_payloads(two: TwoEngines) -> None:
    two.submit("r", *BOTH)
    two.there.connector.arriving = False
    two.write("r", 1)
    (receiver,) = two.there.connector.receivers
    assert len(receiver.pending) == 1
    two.here.abort("r", GIVEN_UP)
    two.settle()
    assert two.links[HERE].kinds()[-1] == "GiveUpOut"
    assert not receiver.pending
    two.there.abort("r", GIVEN_UP)
    two.assert_nothing_left()


def test_a_producer_continues_after_its_consumer_is_done() -> None:
    two = TwoEngines(credit=1)
    sinks = two.submit("r", *BOTH)
    two.write("r", 1)
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
    two.finish("r", "writer")
    assert ended_well(sinks[HERE])
    two.assert_nothing_left()


def test_messages_for_a_stage_that_is_done_are_given_back() -> None:
    """Its request continues at another stage there."""
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
    two.finish("r", "seer", "speaker")
    two.assert_nothing_left()


def test_an_engine_keeps_a_request_until_its_payloads_are_sent(two: TwoEngines) -> None:
    sinks = two.submit("r", *BOTH)
    two.here.connector.sending = False
    produced = two.worker("writer").produce("r", rows(1))
    two.worker("writer").done("r")
    two.settle()
    assert sinks[HERE].finished_stages == ["writer"]
    assert not sinks[HERE].finished
    assert not produced.free
    assert two.here.orchestrator.unfinished == 1
    two.here.connector.sending = True
    two.settle()
    assert ended_well(sinks[HERE])
    assert two.here.orchestrator.unfinished == 0
    assert two.worker("speaker").numbers("r") == [1]
    assert two.worker("speaker").ended("r") == [EDGE]
    two.finish("r", "speaker")
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
    two.write("r", 1, 2)
    assert sinks[THERE].failure.startswith(f"stage {EDGE!r} failed while adapting a payload: ValueError: odd payload (")
    assert not sinks[HERE].finished
    two.write("r", 3)
    two.here.abort("r", GIVEN_UP)
    two.assert_nothing_left()
