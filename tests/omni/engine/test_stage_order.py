"""Slack of listeners, and the order in which stages launch by it, by a clock that the test sets."""

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest

from omni.connector import EdgeEnd
from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.engine import Engine, EngineRequest
from omni.engine.credit import Credit
from omni.engine.faults import Mailbox
from omni.engine.request import SafeSink
from omni.engine.stage_order import StageOrder, edges_to_sound, sound_stages
from omni.engine.user_route import UserRoute
from omni.payload import AudioChunk
from omni.pipeline import Edge, Pipeline, PipelineOutput
from omni.pipeline.adapter import PassThrough
from omni.stage import Listeners
from omni.timeline import watched
from omni_local.connector import LocalConnector
from tests.support.fake_graph import FakeGraph, FakeWorker, Recorder, fake_stage, host, sound

SAMPLE = 1 / 8000
"""Seconds of the fake speaker's chunks."""


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def listeners(clock: Clock) -> Listeners:
    return Listeners(clock, short=0.3)


def test_slack_is_the_sound_that_is_not_played_yet(clock: Clock, listeners: Listeners) -> None:
    listeners.join("a")
    assert listeners.slack("a") == 0
    listeners.add_sound("a", 1.0)
    clock.now += 0.25
    assert listeners.slack("a") == pytest.approx(0.75)
    listeners.add_sound("a", 2.0)
    assert listeners.slack("a") == pytest.approx(2.75)
    assert listeners.underruns == 0


def test_after_an_underrun_sound_is_played_later(clock: Clock, listeners: Listeners) -> None:
    listeners.join("a")
    listeners.add_sound("a", 1.0)
    clock.now += 3
    assert listeners.slack("a") == pytest.approx(-2)
    listeners.add_sound("a", 0.5)
    assert listeners.slack("a") == pytest.approx(0.5)
    assert listeners.underruns == 1


def test_without_a_listener_slack_is_infinite(listeners: Listeners) -> None:
    listeners.add_sound("text", 1.0)
    listeners.reach_sound_stages("text")
    listeners.leave("text")
    assert listeners.slack("text") == listeners.least == math.inf
    assert not any((listeners.short, listeners.awaited, listeners.coming, listeners.anyone))


def test_the_least_slack_is_that_of_listeners_with_sound(clock: Clock, listeners: Listeners) -> None:
    for name, seconds in (("a", 3.0), ("b", 0.4), ("c", 2.0)):
        listeners.join(name)
        listeners.add_sound(name, seconds)
    listeners.join("waits")
    assert listeners.least == pytest.approx(0.4)
    short = [listeners.short]
    clock.now += 0.2
    short.append(listeners.short)
    listeners.add_sound("b", 5.0)
    short.append(listeners.short)
    assert short == [False, True, False]
    assert listeners.least == pytest.approx(1.8)
    listeners.leave("c")
    assert listeners.least == pytest.approx(2.8)
    for name in ("a", "b", "waits"):
        listeners.leave(name)
    assert listeners.least == math.inf


def test_a_request_comes_and_is_awaited_until_its_first_sound(listeners: Listeners) -> None:
    listeners.join("a")
    assert (listeners.coming, listeners.awaited, listeners.waiting) == (True, False, True)
    listeners.reach_sound_stages("a")
    assert (listeners.coming, listeners.awaited, listeners.waiting) == (False, True, True)
    listeners.add_sound("a", 0.0)
    assert listeners.awaited, "an empty chunk is not a sound"
    listeners.add_sound("a", 1.0)
    listeners.reach_sound_stages("a")
    assert (listeners.coming, listeners.awaited) == (False, False)
    for name in ("left early", "left at the talker"):
        listeners.join(name)
    listeners.reach_sound_stages("left at the talker")
    for name in ("left early", "left at the talker"):
        listeners.leave(name)
    assert (listeners.coming, listeners.awaited) == (False, False)


STAGES = ("encoder", "writer", "talker", "vocoder")
SOUND = frozenset({"talker", "vocoder"})
PLAIN = (STAGES, ())
SOUND_FIRST = (("talker", "vocoder"), ("encoder", "writer"))
OTHERS_FIRST = (("encoder", "writer"), ("talker", "vocoder"))


@pytest.fixture
def order(listeners: Listeners) -> StageOrder:
    return StageOrder(STAGES, SOUND, listeners, ample=1.0)


def test_stages_launch_in_the_order_of_the_pipeline_while_nobody_waits(order: StageOrder, listeners: Listeners) -> None:
    assert order.turn() == PLAIN
    listeners.join("a")
    listeners.add_sound("a", 1.5)
    assert order.turn() == PLAIN


def test_a_request_at_the_sound_stages_has_its_sound_made_first(order: StageOrder, listeners: Listeners) -> None:
    listeners.join("a")
    listeners.reach_sound_stages("a")
    assert order.turn() == SOUND_FIRST
    listeners.add_sound("a", 1.5)
    assert order.turn() == PLAIN


def test_streams_with_plenty_of_slack_yield_to_prompts_and_others_do_not(
    order: StageOrder, listeners: Listeners, clock: Clock
) -> None:
    listeners.join("plenty")
    listeners.add_sound("plenty", 1.5)
    listeners.join("new")
    assert order.turn() == OTHERS_FIRST
    clock.now += 0.75
    assert order.turn() == SOUND_FIRST, "it has 0.75 s left"
    listeners.leave("plenty")
    assert order.turn() == OTHERS_FIRST


@pytest.mark.parametrize(
    ("moves", "follows"),
    [
        ((True, True, True, True), (False, True, False, True)),
        ((True, False, True, True), (False, True, False, True)),
        ((False, False, True), (True, True, False)),
    ],
)
def test_the_stages_that_come_second_are_never_held_twice_in_a_row(
    order: StageOrder, moves: Sequence[bool], follows: Sequence[bool]
) -> None:
    assert tuple(order.follows(moved) for moved in moves) == follows


def test_the_numbers_of_a_turn_say_why_it_has_its_order(order: StageOrder, listeners: Listeners, clock: Clock) -> None:
    def numbers() -> dict[str, int]:
        found = order.numbers(order.turn()[0])
        return {name: value for name, value in found.items() if value}

    assert order.numbers(order.turn()[0]).keys() == {"sound_first", "others_first", "short", "awaited"}
    listeners.join("a")
    assert numbers() == {"others_first": 1}
    listeners.reach_sound_stages("a")
    assert numbers() == {"sound_first": 1, "awaited": 1}
    listeners.add_sound("a", 1.5)
    assert numbers() == {"slack_ms": 1500}
    clock.now += 0.75
    assert numbers() == {"sound_first": 1, "slack_ms": 750}
    clock.now += 0.5
    assert numbers() == {"sound_first": 1, "short": 1, "slack_ms": 250}
    single = StageOrder(("talker", "vocoder"), SOUND, listeners)
    assert single.numbers(single.turn()[0]) == {
        "sound_first": 0,
        "others_first": 0,
        "short": 1,
        "awaited": 0,
        "slack_ms": 250,
    }


def test_a_pipeline_of_sound_stages_alone_has_one_order(listeners: Listeners) -> None:
    order = StageOrder(("talker", "vocoder"), SOUND, listeners)
    listeners.join("a")
    listeners.reach_sound_stages("a")
    assert order.turn() == (("talker", "vocoder"), ())


def test_sound_stages_are_those_that_make_sound_and_those_that_feed_them() -> None:
    pipeline = Pipeline(
        family="fake",
        stages=tuple(fake_stage(name) for name in STAGES),
        edges=tuple(Edge(producer=one, consumer=other) for one, other in pairwise(STAGES)),
        outputs=(PipelineOutput(modality="text", stage="writer"), PipelineOutput(modality="audio", stage="vocoder")),
        frontend="none:none",
    )
    assert sound_stages(pipeline) == SOUND
    assert edges_to_sound(pipeline) == {"writer->talker"}
    without = Pipeline(
        family="fake", stages=pipeline.stages, edges=pipeline.edges, outputs=pipeline.outputs[:1], frontend="none:none"
    )
    assert sound_stages(without) == edges_to_sound(without) == frozenset()


class Moving(FakeWorker):
    """Has always something to do. ticked: shared by the stages, the order of their ticks."""

    def __init__(self, name: str, ticked: list[str]) -> None:
        super().__init__()
        self._name = name
        self._ticked = ticked

    def tick(self) -> bool:
        self._ticked.append(self._name)
        super().tick()
        return True


def turns_of(
    graph: FakeGraph, stage_order: StageOrder, ticked: list[str], turns: int, device: Device | None = None
) -> list[list[str]]:
    """The stages that tick in each of the next turns."""
    graph.workers |= {name: Moving(name, ticked) for name in graph.workers}
    graph.orchestrator.mailboxes.update({name: Mailbox.of(worker) for name, worker in graph.workers.items()})
    engine = Engine(
        device or CpuDevice(),
        graph.orchestrator,
        workers=graph.workers,
        ends=graph.engine._ends,
        memory={},
        stage_order=stage_order,
    )
    seen = []
    for _ in range(turns):
        ticked.clear()
        assert engine.tick(), "stages that move make the turn one in which something happened"
        seen.append(list(ticked))
    return seen


def test_the_engine_ticks_held_stages_in_every_other_turn(clock: Clock, listeners: Listeners) -> None:
    graph, ticked = FakeGraph(), list[str]()
    order = StageOrder(tuple(graph.workers), frozenset({"speaker"}), listeners)
    plain = ["seer", "writer", "speaker"]
    assert turns_of(graph, order, ticked, 2) == [plain, plain]
    listeners.join("new")
    assert turns_of(graph, order, ticked, 2) == [["seer", "writer"], plain]
    listeners.reach_sound_stages("new")
    assert turns_of(graph, order, ticked, 2) == [["speaker"], ["speaker", "seer", "writer"]]


def test_a_timeline_has_the_reason_of_each_turn_and_what_it_held(clock: Clock, listeners: Listeners) -> None:
    graph, device = FakeGraph(), CpuDevice()
    order = StageOrder(tuple(graph.workers), frozenset({"speaker"}), listeners)
    with watched(device, tuple(graph.workers)) as timeline:
        timeline.start()
        turns_of(graph, order, [], 1, device)
        listeners.join("new")
        listeners.reach_sound_stages("new")
        turns_of(graph, order, [], 2, device)
        spans = [span for span in timeline.stop().host if span.name == "order"]
    assert [span.stage for span in spans] == 3 * ["engine"]
    assert [(each.numbers["awaited"], each.numbers["sound_first"], each.numbers["held"]) for each in spans] == [
        (0, 0, 0),
        (1, 1, 1),
        (1, 1, 0),
    ]


def test_the_orchestrator_reports_sound_and_requests_to_listeners(clock: Clock) -> None:
    graph = FakeGraph()
    listeners = graph.orchestrator.listeners
    listeners._clock = clock
    text = graph.submit("text", "text")
    assert not listeners.anyone, "nobody listens to a text"
    graph.submit("a", "text", "audio")
    assert (listeners.anyone, listeners.coming) == (True, True)
    graph.seer.produce("a", host(1))
    graph.settle()
    assert (listeners.coming, listeners.awaited) == (False, True), "the writer feeds the stage that makes the sound"
    graph.speaker.produce("a", sound(1))
    graph.settle()
    assert not listeners.awaited
    assert listeners.slack("a") == pytest.approx(SAMPLE)
    clock.now += 1
    graph.speaker.produce("a", sound(2))
    graph.settle()
    assert listeners.underruns == graph.engine.counters()["speaker"]["underruns"] == 1
    assert "underruns" not in graph.engine.counters()["writer"]
    for worker in (graph.seer, graph.writer, graph.speaker):
        worker.done("a")
    graph.settle()
    assert not listeners.anyone, "it is over"
    assert not text.finished


def test_sound_that_an_adapter_makes_is_heard_too() -> None:
    output = PipelineOutput(modality="audio", stage="speaker", adapter="omni.pipeline.adapter:PassThrough")
    edge, end = output.route, EdgeEnd("speaker->user:audio", CpuDevice(), 0)
    assert edge is not None
    connector, worker, heard = LocalConnector(), FakeWorker(), list[AudioChunk]()
    sender = connector.sender(end)
    route = UserRoute(
        "a",
        "audio",
        edge,
        adapter=PassThrough(None),
        ends=(sender, connector.receiver(end, sender.address)),
        credit=Credit("a", worker, (edge,), {}),
        sink=SafeSink("a", Recorder()),
        on_finished=lambda route: None,
        on_sound=heard.append,
    )
    route.send(worker.produce("a", sound(1)))
    while route.tick():
        pass
    assert [len(chunk.samples) for chunk in heard] == [1]


def test_an_answer_that_is_taken_as_a_whole_has_no_listener() -> None:
    graph = FakeGraph()
    request = EngineRequest("a", frozenset({"audio"}), {"writer": [host(0)]}, has_listener=False)
    graph.engine.submit(request, Recorder())
    graph.settle()
    assert not graph.orchestrator.listeners.anyone


def test_a_request_that_fails_has_no_listener() -> None:
    graph = FakeGraph()
    graph.submit("a", "audio")
    graph.engine.abort("a", ValueError("given up"))  # type: ignore[arg-type]
    graph.settle()
    assert not graph.orchestrator.listeners.anyone
