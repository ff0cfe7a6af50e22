"""Two engines under all actions of users, stages, links and processes, in any order: at the end no memory is held."""

from collections import Counter, defaultdict, deque
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from omni.device import COMPLETED
from omni.engine import EngineRequest, StageFinished
from omni.errors import OmniError, StageError
from omni.payload import Payload
from omni.stage import Feed, Pause, Produced
from tests.support.fake_graph import FakeWorker, Note, Recorder, host
from tests.support.two_engines import HERE, THERE, TwoEngines, rows

pytestmark = pytest.mark.thorough

PLACES = (HERE, THERE)
PLACEMENTS = (
    {"seer": HERE, "writer": HERE, "speaker": THERE},
    {"seer": THERE, "writer": HERE, "speaker": THERE},
    {"seer": HERE, "writer": THERE, "speaker": THERE},
)
STAGES = ("seer", "writer", "speaker")
OUTPUT_OF = {"text": "writer", "audio": "speaker"}
AT_ONCE = 2
"""Payloads that a stage makes of one request between two rounds of its engine."""
GIVEN_UP = OmniError("the client went away")
PICKS = st.integers(0, 5)
FIRST = 1000
"""The first number of a stage's payload; the front end's are lower."""


def number_of(payload: Payload) -> int:
    assert isinstance(payload.meta, Note)
    return payload.meta.number


class Asked:
    """A request at its user's side. sinks: by place. aborted: places that it has sent an abort to."""

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.sinks: dict[str, Recorder] = {}
        self.aborted: set[str] = set()

    @property
    def places(self) -> set[str]:
        return set(self.request.places.values())

    @property
    def complete(self) -> bool:
        """Whether all wanted outputs were given."""
        done = {o.stage for sink in self.sinks.values() for o in sink.outputs if isinstance(o, StageFinished)}
        return {OUTPUT_OF[modality] for modality in self.request.modalities} <= done

    @property
    def failed(self) -> bool:
        return any(sink.finished and not sink.succeeded for sink in self.sinks.values())


class TwoUnderPressure(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.build(PLACEMENTS[0], 2, [1, 1])

    @initialize(
        at=st.sampled_from(PLACEMENTS),
        credit=st.integers(1, 3),
        active=st.lists(st.integers(1, 3), min_size=2, max_size=2),
    )
    def build(self, at: dict[str, str], credit: int, active: list[int]) -> None:
        self.two = TwoEngines(at, credit=credit, max_active=dict(zip(PLACES, active, strict=True)))
        self.credit = credit
        self.asked: dict[str, Asked] = {}
        self.coming: dict[str, deque[tuple[str, bool]]] = {place: deque() for place in PLACES}
        """Requests, and aborts of requests, on their way to each engine, in order."""
        self.made: list[tuple[str, Produced]] = []
        self.fresh: Counter[tuple[str, str]] = Counter()
        self.serials = count(FIRST)
        self.produced: dict[tuple[str, str], list[int]] = defaultdict(list)
        """Numbers of the payloads by producing stage and request."""
        self.came: dict[tuple[str, str], list[int]] = defaultdict(list)
        """Numbers of the payloads by consuming stage and request."""
        self.gone: set[str] = set()
        """Requests with stages in an engine that has ended."""

    # Users.

    @rule(speaks=st.booleans(), sees=st.booleans())
    def submit(self, speaks: bool, sees: bool) -> None:
        name = f"r{len(self.asked)}"
        request = self.two.request(name, *(("text", "audio") if speaks else ("text",)), seer=sees)
        self.asked[name] = Asked(request)
        for place in self.asked[name].places:
            self.coming[place].append((name, False))

    @rule(pick=PICKS)
    def give_up(self, pick: int) -> None:
        names = list(self.asked)
        if names:
            self.abort(names[pick % len(names)])

    @rule(place=st.sampled_from(PLACES))
    def arrive(self, place: str) -> None:
        """The next command reaches an engine."""
        if not self.coming[place]:
            return
        name, aborts = self.coming[place].popleft()
        asked = self.asked[name]
        if aborts:
            self.two.engines[place].abort(name, GIVEN_UP, asked.request.number)
        else:
            asked.sinks[place] = self.two.submit_at(place, asked.request)

    def abort(self, name: str) -> None:
        asked = self.asked[name]
        for place in asked.places - asked.aborted:
            asked.aborted.add(place)
            self.coming[place].append((name, True))

    def look(self) -> None:
        """The users' side of the outputs."""
        for name, asked in self.asked.items():
            if asked.failed or asked.complete or name in self.gone:
                self.abort(name)

    # Stages.

    @rule(stage=st.sampled_from(STAGES), pick=PICKS, lends=st.sampled_from([True, True, False]))
    def produce(self, stage: str, pick: int, lends: bool) -> None:
        name = self.pick(stage, pick)
        if name is not None and not self.paused(stage, name) and self.fresh[stage, name] < AT_ONCE:
            self.fresh[stage, name] += 1
            self.give(stage, name, lends)

    @rule(stage=st.sampled_from(STAGES), pick=PICKS, which=PICKS, releases=st.booleans())
    def consume(self, stage: str, pick: int, which: int, releases: bool) -> None:
        name = self.pick(stage, pick)
        fed = self.two.worker(stage).fed(name) if name is not None else []
        if fed:
            feed = fed[which % len(fed)]
            self.let_go(stage, feed) if releases else feed.acquire()

    @rule(stage=st.sampled_from(STAGES), pick=PICKS, fails=st.sampled_from([False, False, True]))
    def end(self, stage: str, pick: int, fails: bool) -> None:
        name, worker = self.pick(stage, pick), self.two.worker(stage)
        if name is not None and fails:
            worker.fail(name, StageError(stage, "thinking", "no idea"))
        elif name is not None:
            worker.done(name)

    # Engines, links, processes.

    @rule(place=st.sampled_from(PLACES))
    def tick(self, place: str) -> None:
        self.two.engines[place].engine.tick()
        for key in [key for key in self.fresh if self.two.at[key[0]] == place]:
            del self.fresh[key]
        self.read()
        self.look()

    @rule(place=st.sampled_from(PLACES), sending=st.booleans(), arriving=st.booleans(), stuck=st.booleans())
    def hold_up(self, place: str, sending: bool, arriving: bool, stuck: bool) -> None:
        connector = self.two.engines[place].connector
        connector.sending, connector.arriving = sending, arriving
        self.two.links[place].stuck = stuck

    @rule(place=st.sampled_from(PLACES), noticed=st.booleans())
    def die(self, place: str, noticed: bool) -> None:
        """A process ends, and another one takes its place. Requests that it does not get are aborted there. noticed: before
        the other engine is connected again."""
        self.two.end(place)
        self.made = [(stage, produced) for stage, produced in self.made if self.two.at[stage] != place]
        for name, asked in self.asked.items():
            if place in asked.places:
                self.gone.add(name)
                asked.sinks.pop(place, None)
                asked.aborted.discard(place)
        self.coming[place].clear()
        if noticed:
            self.tick(HERE if place == THERE else THERE)
        self.two.connect()
        self.fresh.clear()
        self.read()
        self.look()

    # What holds.

    @invariant()
    def payloads_come_in_the_order_in_which_they_were_made(self) -> None:
        for (stage, name), numbers in self.came.items():
            for edge in self.two.pipeline.edges_into(stage):
                sent = self.produced[edge.producer, name]
                assert [number for number in numbers if number in sent] == sent[: sum(n in sent for n in numbers)]

    @invariant()
    def no_producer_runs_further_ahead_than_its_credit_and_what_was_under_way(self) -> None:
        for edge in self.two.pipeline.edges:
            for name in self.two.worker(edge.producer).held & self.two.worker(edge.consumer).held:
                made = [p for stage, p in self.made if (stage, p.request_id) == (edge.producer, name)]
                sent = {number_of(produced.payload) for produced in made}
                fed = self.two.worker(edge.consumer).fed(name)
                waiting = {number_of(feed.payload) for feed in fed if not feed._acquired}
                acquired = set(self.came[edge.consumer, name]) - waiting
                assert len(sent - acquired) <= edge.credit - 1 + 2 * AT_ONCE

    def teardown(self) -> None:
        for place in PLACES:
            self.hold_up(place, True, True, False)
        for _ in range(300):
            for place in PLACES:
                while self.coming[place]:
                    self.arrive(place)
                self.tick(place)
            self.finish_stages()
            if all(sink.finished for asked in self.asked.values() for sink in asked.sinks.values()) and not any(
                self.coming.values()
            ):
                break
        else:
            raise AssertionError("a request is stuck")
        for stage in STAGES:
            for feed in [each for each in self.two.worker(stage).taken if isinstance(each, Feed)]:
                self.let_go(stage, feed)
        self.two.settle()
        self.read()
        self.two.assert_nothing_left()
        assert all(produced.released and produced.free for _, produced in self.made)
        assert all(error is None for errors in self.two.connected.values() for error in errors)

    def finish_stages(self) -> None:
        """Stages whose sources have ended give one more payload, and are done."""
        for stage in STAGES:
            worker = self.two.worker(stage)
            for name in list(worker.held):
                worker.release(name)
                if set(worker.ended(name)) == worker.opened(name).inputs and not self.paused(stage, name):
                    self.give(stage, name, True)
                    worker.done(name)

    # Helpers.

    def pick(self, stage: str, index: int) -> str | None:
        names = sorted(self.two.worker(stage).held)
        return names[index % len(names)] if names else None

    def paused(self, stage: str, name: str) -> bool:
        return self.two.worker(stage).pauses(name)[-1:] == [Pause]

    def give(self, stage: str, name: str, lends: bool) -> None:
        number = next(self.serials)
        self.produced[stage, name].append(number)
        self.made.append((stage, self.two.worker(stage).produce(name, rows(number) if lends else host(number))))

    def let_go(self, stage: str, feed: Feed) -> None:
        self.two.worker(stage).taken.remove(feed)
        feed.release(COMPLETED)

    def read(self) -> None:
        """Records the arrived inputs. Stages release inputs that arrive after their end."""
        for stage in STAGES:
            worker = self.two.worker(stage)
            for feed in [each for each in worker.taken if isinstance(each, Feed)]:
                self.note(stage, worker, feed)

    def note(self, stage: str, worker: FakeWorker, feed: Feed) -> None:
        number, came = number_of(feed.payload), self.came[stage, feed.request_id]
        if number >= FIRST and number not in came:
            came.append(number)
        if feed.request_id not in worker.held:
            self.let_go(stage, feed)


TestTwoUnderPressure = TwoUnderPressure.TestCase
TestTwoUnderPressure.settings = settings(max_examples=80, stateful_step_count=60)
