"""The rule of waiting and rejected requests, beside a plain list that is sorted and summed anew each time."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from omni.engine import Admission, PriorityQueue
from omni.errors import OverloadedError

THINGS = [bytes(size) for size in (1, 2, 3, 5, 8)]
"""What requests hold, some of them together."""
HELD = st.lists(st.sampled_from(range(len(THINGS))), max_size=3).map(
    lambda picks: [(THINGS[i], len(THINGS[i])) for i in picks]
)


@dataclass
class Plain:
    key: str
    order: tuple[int, int]
    held: list[tuple[bytes, int]]
    ready: bool = False


@dataclass
class Model:
    waiting: list[Plain] = field(default_factory=list)

    @property
    def held(self) -> int:
        return sum({id(thing): size for one in self.waiting for thing, size in one.held}.values())


class Rule(RuleBasedStateMachine):
    @initialize(active=st.integers(1, 3), waiting=st.integers(0, 4), most=st.integers(4, 20), at_once=st.integers(1, 3))
    def build(self, active: int, waiting: int, most: int, at_once: int) -> None:
        self.limits = (active, waiting, most, at_once)
        self.admission: Admission[str] = Admission(active, waiting, most, at_once)
        self.model = Model()
        self.active: list[str] = []
        self.count = 0

    @rule(priority=st.integers(-2, 2), held=HELD)
    def join(self, priority: int, held: list[tuple[bytes, int]]) -> None:
        max_active, max_waiting, max_bytes, at_once = self.limits
        new = Plain(f"r{self.count}", (priority, self.count), held)
        before, model = self.model.held, self.model
        most = max_waiting + min(max_active - len(self.active), at_once)
        self.count += 1
        rest = Model([one for one in model.waiting if one.order[0] <= priority])
        alone = Model([new]).held > max_bytes
        if alone or len(rest.waiting) >= most or Model([*rest.waiting, new]).held > max(max_bytes, before):
            with pytest.raises(OverloadedError) as raised:
                self.admission.join(new.key, new.key, priority, len(self.active), held, ready=False)
            assert "rejected" not in str(raised.value)
            return
        gave_way = self.admission.join(new.key, new.key, priority, len(self.active), held, ready=False)
        self.part(gave_way, new)
        model.waiting.append(new)
        assert len(model.waiting) <= most
        assert model.held <= max(max_bytes, before)

    @rule(pick=st.integers(0, 9), held=HELD, ready=st.booleans())
    def hold(self, pick: int, held: list[tuple[bytes, int]], ready: bool) -> None:
        if self.model.waiting:
            one = self.model.waiting[pick % len(self.model.waiting)]
            before = self.model.held
            if not (one.ready or ready) and Model([Plain("", (0, 0), held)]).held > self.limits[2]:
                with pytest.raises(OverloadedError, match="the request alone holds"):
                    self.admission.hold(one.key, held, ready=ready)
                return
            gave_way = self.admission.hold(one.key, held, ready=ready)
            one.held, one.ready = held, one.ready or ready
            self.part(gave_way, one)
            if any(other.order[0] > one.order[0] for other in self.model.waiting):
                assert self.model.held <= max(self.limits[2], before)

    def part(self, gave_way: list, new: Plain) -> None:  # type: ignore[type-arg]
        keys = {each.waiting.key for each in gave_way}
        gone = [one for one in self.model.waiting if one.key in keys]
        assert len(gone) == len(keys)
        assert all(one.order[0] > new.order[0] for one in gone)
        assert all("was rejected for a more urgent one" in str(each.error) for each in gave_way)
        self.model.waiting = [one for one in self.model.waiting if one.key not in keys]
        if len(gone) == 1 and not any(one.held for one in (*gone, new, *self.model.waiting)):
            assert all(one.order <= gone[0].order for one in self.model.waiting), (
                "the least urgent, and the last of them"
            )

    @rule()
    def let_in(self) -> None:
        ready = [one for one in self.model.waiting if one.ready]
        waiting = self.admission.next(len(self.active))
        if not ready or len(self.active) >= self.limits[0]:
            assert waiting is None
            return
        first = min(ready, key=lambda one: one.order)
        assert waiting is not None
        assert (waiting.key, waiting.item, waiting.order) == (first.key, first.key, first.order)
        assert self.admission.leave(first.key) is waiting
        self.model.waiting.remove(first)
        self.active.append(first.key)

    @rule(pick=st.integers(0, 9))
    def end(self, pick: int) -> None:
        if self.active:
            self.active.pop(pick % len(self.active))

    @rule(pick=st.integers(0, 9))
    def leave(self, pick: int) -> None:
        assert self.admission.leave("nobody") is None
        if self.model.waiting:
            one = self.model.waiting.pop(pick % len(self.model.waiting))
            assert self.admission.leave(one.key) is not None

    @rule(priority=st.integers(-2, 2))
    def grow(self, priority: int) -> None:
        ready = [one.order[0] for one in self.model.waiting if one.ready]
        full = self.model.held >= self.limits[2]
        assert self.admission.may_grow(priority) == (not full or not ready or max(ready) > priority)

    @invariant()
    def counts_agree(self) -> None:
        assert self.admission.waiting == len(self.model.waiting)
        assert self.admission.held_bytes == self.model.held
        assert all(one.key in self.admission for one in self.model.waiting)

    def teardown(self) -> None:
        self.admission.leave_all()
        assert (self.admission.waiting, self.admission.held_bytes) == (0, 0)


TestRule = Rule.TestCase
TestRule.settings = settings(max_examples=100, stateful_step_count=40)


@pytest.mark.parametrize("bytes_short", [True, False])
def test_as_few_requests_as_possible_give_way(bytes_short: bool) -> None:
    """Among less urgent requests, one that holds the scarce resource; the others stay, though some are less urgent."""
    admission: Admission[str] = Admission(1, 4, 100)
    admission.join("heavy", "", 1, 1, [(bytes(90), 90)])
    for number in range(3):
        admission.join(f"light {number}", "", 5, 1, [(bytes([number]), 1)])
    gave_way = admission.join("urgent", "", 0, 1 if not bytes_short else 0, [(bytes(30), 30 if bytes_short else 1)])
    assert [each.waiting.key for each in gave_way] == (["heavy"] if bytes_short else ["light 2"])


def test_a_ready_request_may_hold_more_than_all_waiting_ones() -> None:
    admission: Admission[str] = Admission(1, 1, 10)
    for ready in (True, False):
        admission.join("large", "", ready=False)
        assert admission.hold("large", [(bytes(11), 11)], ready=True) == []
        assert admission.hold("large", [(bytes(12), 12)], ready=ready) == []
        assert admission.held_bytes == 12
        admission.leave("large")


def test_first_has_the_lowest_order_after_any_removal() -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    for number in range(100):
        queue.add(str(number), (number % 7, number), number)
    assert len(queue) == 100
    for number in range(0, 100, 3):
        assert queue.remove(str(number)) == number
    assert queue.remove("0") is None
    queue.add("0", (9, 0), 0)
    left = sorted((number for number in range(100) if number % 3), key=lambda number: (number % 7, number))
    for number in [*left, 0]:
        assert queue.first() == number
        assert str(number) in queue
        queue.remove(str(number))
    assert queue.first() is None
    assert list(queue) == []
