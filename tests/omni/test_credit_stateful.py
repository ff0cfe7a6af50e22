"""Admission, routing and credit together, under everything that users and stages do, in any order."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from omni.device import COMPLETED
from omni.errors import OmniError, StageError
from support.fake_crew import CREW, Crew, CrewWorker, Task

AT_ONCE = 2
"""Payloads that a stage makes of one request between two rounds of the engine."""
STAGES = st.sampled_from([stage.name for stage in CREW.stages])
PICKS = st.integers(0, 5)


class Pressure(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.build(1, 0)

    @initialize(max_active=st.integers(1, 3), max_waiting=st.integers(0, 3))
    def build(self, max_active: int, max_waiting: int) -> None:
        self.crew = Crew(max_active, max_waiting)
        self.limits = (max_active, max_waiting)
        self.seen = 0
        self.ranks: dict[str, tuple[int, int]] = {}
        self.made: Counter[tuple[str, str]] = Counter()

    @rule(priority=st.integers(-1, 1), speaks=st.booleans(), rude=st.sampled_from([False] * 7 + [True]))
    def submit(self, priority: int, speaks: bool, rude: bool) -> None:
        name = f"r{len(self.ranks)}"
        self.ranks[name] = (priority, len(self.ranks))
        self.crew.submit(name, frozenset({"text", "audio"} if speaks else {"text"}), priority, rude)
        self.tick()

    @rule(stage=STAGES, pick=PICKS, lends=st.booleans(), parts=st.sampled_from([0, 1, 1, 1, 2]))
    def produce(self, stage: str, pick: int, lends: bool, parts: int) -> None:
        task = self.pick(stage, pick)
        if task is not None and not task.paused and self.made[stage, task.id] < AT_ONCE:
            self.made[stage, task.id] += 1
            self.crew.workers[stage].produce(self.crew.parcel(task.id, parts), lends)

    @rule(stage=STAGES, pick=PICKS, release=st.booleans(), which=PICKS)
    def consume(self, stage: str, pick: int, release: bool, which: int) -> None:
        task = self.pick(stage, pick)
        if task is not None and task.claims:
            claim = task.claims[which % len(task.claims)]
            claim.acquire() if not release else self.let_go(task, which % len(task.claims))

    @rule(stage=STAGES, pick=PICKS, how=st.sampled_from(["done", "done", "failed", "aborted", "poisoned"]))
    def end(self, stage: str, pick: int, how: str) -> None:
        task, worker = self.pick(stage, pick), self.crew.workers[stage]
        if task is None:
            return
        if how == "done":
            worker.finish(task.id, "stop", {})
        elif how == "failed":
            worker.fail(task.id, "thinking", StageError(stage, "thinking", "no idea"))
        elif how == "poisoned":
            worker.produce(self.crew.parcel(task.id, -1), True)
        else:
            self.crew.engine.abort(task.id, OmniError("the client went away"))
            self.tick()

    @rule(pick=PICKS)
    def give_up_waiting(self, pick: int) -> None:
        waiting = [name for name in self.ranks if name not in self.crew.let_in]
        if waiting:
            self.crew.engine.abort(waiting[pick % len(waiting)], OmniError("the client went away"))
            self.tick()

    @rule(flowing=st.lists(st.booleans(), min_size=len(CREW.edges), max_size=len(CREW.edges)))
    def hold_up(self, flowing: list[bool]) -> None:
        for connector, flows in zip(self.crew.connectors.values(), flowing, strict=True):
            connector.flowing = flows

    @rule()
    def tick(self) -> None:
        self.crew.engine.tick()
        self.made.clear()

    @rule()
    def settle(self) -> None:
        """Until nothing happens: then every producer knows whether it is paused."""
        while self.crew.engine.tick():
            pass
        self.made.clear()
        for stage, worker in self.crew.workers.items():
            for task in worker.requests.values():
                self.check_pause(stage, task)

    @invariant()
    def nothing_is_said_twice(self) -> None:
        assert all(not worker.wrong for worker in self.workers)
        assert all(sink.ends <= 1 for sink in self.crew.sinks.values())
        for connector in self.crew.connectors.values():
            assert len(set(map(id, connector.releases))) == len(connector.releases)

    @invariant()
    def no_producer_runs_further_ahead_than_its_credit_and_what_was_under_way(self) -> None:
        for edge in CREW.edges:
            for task in self.crew.live(edge.producer):
                assert self.crew.outstanding(edge, task.id) <= edge.credit - 1 + 2 * AT_ONCE

    @invariant()
    def no_more_than_so_many_are_let_in_and_the_first_in_rank_are(self) -> None:
        max_active, max_waiting = self.limits
        let_in = self.crew.let_in
        inside = {name for name in let_in if not self.crew.sinks[name].ends}
        waiting = {name for name, sink in self.crew.sinks.items() if not sink.ends} - inside
        assert len(inside) <= max_active
        assert len(waiting) <= max_waiting
        if waiting:
            assert len(inside) == max_active
            first = min(self.ranks[name] for name in waiting)
            assert all(self.ranks[name] < first for name in let_in[self.seen :])
        self.seen = len(let_in)

    def teardown(self) -> None:
        self.finish_everything()
        assert self.crew.engine.idle
        assert all(sink.ends == 1 for sink in self.crew.sinks.values())
        for worker in self.workers:
            assert all(one.free and one.released for one in worker.made)
        for connector in self.crew.connectors.values():
            assert all(ref.released and ref.freed for _, ref in connector.sent)

    def finish_everything(self) -> None:
        """Consumers consume and producers that are not paused give their rest: so every request comes to its end."""
        for connector in self.crew.connectors.values():
            connector.flowing = True
        rest = {(stage, task.id): 5 for stage in self.crew.workers for task in self.crew.live(stage)}
        for _ in range(1000):
            if self.crew.engine.idle:
                return
            for stage, worker in self.crew.workers.items():
                for task in list(worker.requests.values()):
                    while task.claims:
                        self.let_go(task, 0)
                    left = rest.setdefault((stage, task.id), 5)
                    if left and not task.paused:
                        worker.produce(self.crew.parcel(task.id, 1), True)
                        rest[stage, task.id] -= 1
                    elif not left and not task.open_sources:
                        worker.finish(task.id, "stop", {})
            self.settle()
        raise AssertionError("a request is stuck")

    def check_pause(self, stage: str, task: Task) -> None:
        edges = [e for e in CREW.edges if e.producer == stage and task.id in self.crew.workers[e.consumer].requests]
        outstanding = [(self.crew.outstanding(edge, task.id), edge.credit) for edge in edges]
        if any(count >= credit for count, credit in outstanding):
            assert task.paused
        if all(count <= credit // 2 for count, credit in outstanding):
            assert not task.paused

    @property
    def workers(self) -> list[CrewWorker]:
        return list(self.crew.workers.values())

    def pick(self, stage: str, index: int) -> Task | None:
        tasks = list(self.crew.workers[stage].requests.values())
        return tasks[index % len(tasks)] if tasks else None

    def let_go(self, task: Task, index: int) -> None:
        task.claims.pop(index).feed.release(COMPLETED)


TestPressure = Pressure.TestCase
TestPressure.settings = settings(max_examples=200, stateful_step_count=60)
