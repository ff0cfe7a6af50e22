"""Which requests are let in, who waits, and who gives way."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from omni.engine.held import Held, Ledger
from omni.engine.ranked import Rank, Ranked
from omni.errors import OverloadedError

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Candidate(Generic[T]):
    """A request that is not at the stages yet: host memory only.

    rank: priority and arrival number. held: what is kept for it. ready: it may be let in.
    """

    key: str
    thing: T
    rank: Rank
    held: Held = ()
    ready: bool = True


@dataclass(frozen=True, slots=True)
class Overloaded(Generic[T]):
    """A request that waited, waits no more, and is to be told why."""

    candidate: Candidate[T]
    error: OverloadedError


class Admission(Generic[T]):
    """The one rule of who waits for the stages, by priority, then arrival; wherever it is applied.

    At most `max_active` requests are at the stages at once. Up to `max_waiting` more wait, and hold up to `max_bytes`. Where that
    is not enough, the least urgent of those that wait gives way to one of a lower priority number; among equals, the newcomer is
    refused. A request for which a place is free does not count as waiting; of those that are not ready yet, no more than `at_once`
    can be on their way to one.

    Joining, leaving and being next cost the logarithm of how many wait; waiting costs nothing. For one thread at a time.
    """

    def __init__(
        self, max_active: int, max_waiting: int, max_bytes: int | None = None, at_once: int | None = None
    ) -> None:
        self._max_active = max_active
        self._max_waiting = max_waiting
        self._max_bytes = max_bytes
        self._at_once = max_active if at_once is None else at_once
        self._numbers = itertools.count()
        self._ledger = Ledger()
        self._waiting: dict[str, Candidate[T]] = {}
        self._last: Ranked[Candidate[T]] = Ranked()
        """All of them, the least urgent first."""
        self._ready: Ranked[Candidate[T]] = Ranked()
        self._last_ready: Ranked[Candidate[T]] = Ranked()

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def held_bytes(self) -> int:
        """What they hold."""
        return self._ledger.bytes

    def __contains__(self, key: str) -> bool:
        return key in self._waiting

    def rank(self, key: str) -> Rank:
        """Of one that waits: its priority, and the number of its arrival."""
        return self._waiting[key].rank

    def join(
        self, key: str, thing: T, priority: int = 0, active: int = 0, held: Held = (), *, ready: bool = True
    ) -> list[Overloaded[T]]:
        """Puts a request among those that wait. active: how many are at the stages. Returns who gave way.

        Raises OverloadedError if it is refused; then nobody gave way.
        """
        candidate = Candidate(key, thing, (priority, next(self._numbers)), held, ready)
        self._check_alone(held)
        free = max(0, self._max_active - active)
        most, most_bytes = self._max_waiting + min(free, self._at_once), self._most_bytes()

        def short() -> OverloadedError | None:
            return self._short(self.waiting >= most, active, most_bytes)

        self._ledger.add(held)
        gave_way = self._make_room(candidate, short)
        refused = short()
        self._ledger.remove(held)
        if refused is not None:
            for each in gave_way:
                self._add(each.candidate)
            raise refused
        self._add(candidate)
        return gave_way

    def hold(self, key: str, held: Held, *, ready: bool = False) -> list[Overloaded[T]]:
        """What the request holds is something else now, and maybe it is `ready`. Returns who gave way. A no-op if it does not wait.

        One that is ready is let in whatever it holds: it came this far. One that is not, and alone holds more than all may, is to
        be given up: raises OverloadedError, and it waits as before until it leaves.
        """
        candidate = self._waiting.get(key)
        if candidate is None:
            return []
        if not (candidate.ready or ready):
            self._check_alone(held)
        most_bytes = self._most_bytes()
        self._remove(candidate)
        candidate.held, candidate.ready = held, candidate.ready or ready
        self._ledger.add(held)
        gave_way = self._make_room(candidate, lambda: self._short(False, 0, most_bytes))
        self._ledger.remove(held)
        self._add(candidate)
        return gave_way

    def may_grow(self, priority: int) -> bool:
        """Whether a request of that priority should be made ready now, which takes memory.

        Not while those that wait hold all they may, if any of them are ready, and so will be let in; but a more urgent one is made
        ready all the same, for the least urgent of them gives way to it.
        """
        last = self._last_ready.first()
        return self._max_bytes is None or self.held_bytes < self._max_bytes or last is None or last.rank[0] > priority

    def next(self, active: int) -> Candidate[T] | None:
        """The request that is let in now, if any. It waits until it leaves."""
        return self._ready.first() if active < self._max_active else None

    def leave(self, key: str) -> Candidate[T] | None:
        """The request does not wait any more. None if it did not."""
        candidate = self._waiting.get(key)
        if candidate is not None:
            self._remove(candidate)
        return candidate

    def leave_all(self) -> list[Candidate[T]]:
        """Nobody waits any more."""
        candidates = list(self._waiting.values())
        for candidate in candidates:
            self._remove(candidate)
        return candidates

    def _check_alone(self, held: Held) -> None:
        if self._max_bytes is None:
            return
        alone = sum({id(thing): size for thing, size in held}.values())
        if alone > self._max_bytes:
            problem = f"the request alone holds {alone} bytes, and all that wait may hold {self._max_bytes}"
            raise OverloadedError(_BYTES, problem, "send less in one request, or raise it")

    def _make_room(self, newcomer: Candidate[T], short: Callable[[], OverloadedError | None]) -> list[Overloaded[T]]:
        """Removes as few of the less urgent as it takes, if they are enough."""
        removed: list[Overloaded[T]] = []
        while (error := short()) is not None:
            last = self._last.first()
            if last is None or last.rank[0] <= newcomer.rank[0]:
                break
            self._remove(last)
            removed.append(Overloaded(last, _gave_way(error)))
        gave_way = []
        for each in reversed(removed):
            # The least urgent may hold nothing of what was short: they stay.
            self._add(each.candidate)
            if short() is not None:
                self._remove(each.candidate)
                gave_way.append(each)
        return gave_way

    def _most_bytes(self) -> int | None:
        """What may be held after a change: where it was more before, others give way for what is new alone."""
        return None if self._max_bytes is None else max(self._max_bytes, self.held_bytes)

    def _short(self, full: bool, active: int, most_bytes: int | None) -> OverloadedError | None:
        if full:
            problem = f"{active} requests are under way and {self.waiting} wait, which is the most that may"
            return OverloadedError(_REQUESTS, problem, "ask again later, or raise it")
        if most_bytes is not None and self.held_bytes > most_bytes:
            problem = f"requests that wait hold {self._max_bytes} bytes already, which is the most that they may"
            return OverloadedError(_BYTES, problem, "ask again later, or raise it")
        return None

    def _add(self, candidate: Candidate[T]) -> None:
        priority, number = candidate.rank
        self._ledger.add(candidate.held)
        self._waiting[candidate.key] = candidate
        self._last.add(candidate.key, (-priority, -number), candidate)
        if candidate.ready:
            self._ready.add(candidate.key, candidate.rank, candidate)
            self._last_ready.add(candidate.key, (-priority, -number), candidate)

    def _remove(self, candidate: Candidate[T]) -> None:
        self._ledger.remove(candidate.held)
        del self._waiting[candidate.key]
        for order in (self._last, self._ready, self._last_ready):
            order.remove(candidate.key)


_REQUESTS, _BYTES = "engine.max_waiting_requests", "engine.max_waiting_bytes"


def _gave_way(error: OverloadedError) -> OverloadedError:
    problem = f"the request waited and gave way to a more urgent one: {error.problem}"
    return OverloadedError(error.field, problem, "ask again later, with a lower priority number, or raise it")
