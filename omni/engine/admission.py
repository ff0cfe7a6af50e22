"""Admission of requests: each is admitted, waits, or is rejected."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from omni.engine.priority_queue import PriorityQueue, ServingOrder
from omni.errors import OverloadedError

T = TypeVar("T")
Held = Sequence[tuple[object, int]]
"""Host memory: pairs of an object and its bytes."""


@dataclass(slots=True, eq=False)
class WaitingRequest(Generic[T]):
    """A request that is not at the stages yet and holds host memory only.

    order: priority and arrival number. held: its host memory. ready: whether it can be admitted.
    """

    key: str
    item: T
    order: ServingOrder
    held: Held = ()
    ready: bool = True


@dataclass(frozen=True, slots=True)
class Rejected(Generic[T]):
    """A request that left the queue for a more urgent one."""

    waiting: WaitingRequest[T]
    error: OverloadedError


class HeldMemory:
    """Counts every object once, even if several requests hold it, such as one picture."""

    def __init__(self) -> None:
        self.bytes = 0
        # Keeps the objects, so that no new object gets the id of a freed one.
        self._holders: dict[int, tuple[object, int, int]] = {}

    def add(self, held: Held) -> None:
        for thing, size in held:
            _, counted, holders = self._holders.get(id(thing), (thing, size, 0))
            self._holders[id(thing)] = (thing, counted, holders + 1)
            self.bytes += 0 if holders else counted

    def remove(self, held: Held) -> None:
        """held: the value that was added."""
        for thing, _ in held:
            _, counted, holders = self._holders.pop(id(thing))
            if holders > 1:
                self._holders[id(thing)] = (thing, counted, holders - 1)
            else:
                self.bytes -= counted


class Admission(Generic[T]):
    """The queue of requests that wait for the stages, by priority, then arrival.

    At most `max_active` requests are at the stages at once. Up to `max_waiting` more wait, and hold up to `max_bytes`.
    Beyond these limits, a newcomer replaces the least urgent waiting request if its own priority number is lower;
    otherwise it is refused. Requests that the engine can take now do not count as waiting; of those that are not
    ready, at most `at_once` are exempt.

    `join`, `leave` and `next` take logarithmic time in the number of waiting requests. Not thread-safe.
    """

    def __init__(
        self, max_active: int, max_waiting: int, max_bytes: int | None = None, at_once: int | None = None
    ) -> None:
        self._max_active = max_active
        self._max_waiting = max_waiting
        self._max_bytes = max_bytes
        self._at_once = max_active if at_once is None else at_once
        self._numbers = itertools.count()
        self._held_memory = HeldMemory()
        self._waiting: dict[str, WaitingRequest[T]] = {}
        self._last: PriorityQueue[WaitingRequest[T]] = PriorityQueue()
        """All waiting requests, the least urgent first."""
        self._ready: PriorityQueue[WaitingRequest[T]] = PriorityQueue()
        self._last_ready: PriorityQueue[WaitingRequest[T]] = PriorityQueue()

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    @property
    def held_bytes(self) -> int:
        """Host memory of all waiting requests."""
        return self._held_memory.bytes

    def __contains__(self, key: str) -> bool:
        return key in self._waiting

    def order(self, key: str) -> ServingOrder:
        """Priority and arrival number of a waiting request."""
        return self._waiting[key].order

    def join(
        self, key: str, item: T, priority: int = 0, active: int = 0, held: Held = (), *, ready: bool = True
    ) -> list[Rejected[T]]:
        """Adds a waiting request. active: number of requests at the stages. Returns the rejected requests.

        Raises OverloadedError if the new request is refused; then no other is rejected.
        """
        request = WaitingRequest(key, item, (priority, next(self._numbers)), held, ready)
        self._check_alone(held)
        free = max(0, self._max_active - active)
        most, most_bytes = self._max_waiting + min(free, self._at_once), self._most_bytes()

        def short() -> OverloadedError | None:
            return self._short(self.waiting >= most, active, most_bytes)

        self._held_memory.add(held)
        rejected = self._reject_less_urgent(request, short)
        refused = short()
        self._held_memory.remove(held)
        if refused is not None:
            for each in rejected:
                self._add(each.waiting)
            raise refused
        self._add(request)
        return rejected

    def hold(self, key: str, held: Held, *, ready: bool = False) -> list[Rejected[T]]:
        """Updates the memory that the request holds, and sets `ready`. Returns the rejected requests. A no-op if it
        does not wait.

        A ready request is admitted at any size. Raises OverloadedError if a request that is not ready exceeds the
        limit of all waiting requests by itself; it stays in the queue as before.
        """
        request = self._waiting.get(key)
        if request is None:
            return []
        if not (request.ready or ready):
            self._check_alone(held)
        most_bytes = self._most_bytes()
        self._remove(request)
        request.held, request.ready = held, request.ready or ready
        self._held_memory.add(held)
        rejected = self._reject_less_urgent(request, lambda: self._short(False, 0, most_bytes))
        self._held_memory.remove(held)
        self._add(request)
        return rejected

    def may_grow(self, priority: int) -> bool:
        """Whether a request of that priority should be prepared now, which takes memory.

        False while the waiting requests hold their maximum and one of them is ready, so that its admission frees
        memory. A more urgent request is prepared anyway: the least urgent one is rejected for it.
        """
        last = self._last_ready.first()
        return self._max_bytes is None or self.held_bytes < self._max_bytes or last is None or last.order[0] > priority

    def next(self, active: int) -> WaitingRequest[T] | None:
        """The request to admit now, if any. It stays in the queue until `leave`."""
        return self._ready.first() if active < self._max_active else None

    def leave(self, key: str) -> WaitingRequest[T] | None:
        """Removes and returns a waiting request; None if it does not wait."""
        request = self._waiting.get(key)
        if request is not None:
            self._remove(request)
        return request

    def leave_all(self) -> list[WaitingRequest[T]]:
        """Removes and returns all waiting requests."""
        requests = list(self._waiting.values())
        for request in requests:
            self._remove(request)
        return requests

    def _check_alone(self, held: Held) -> None:
        if self._max_bytes is None:
            return
        alone = sum({id(thing): size for thing, size in held}.values())
        if alone > self._max_bytes:
            problem = f"the request alone holds {alone} bytes, above the {self._max_bytes} of all waiting requests"
            raise OverloadedError(_BYTES, problem, "send less in one request", "raise it")

    def _reject_less_urgent(
        self, newcomer: WaitingRequest[T], short: Callable[[], OverloadedError | None]
    ) -> list[Rejected[T]]:
        """Removes as few less urgent requests as necessary; none if that does not suffice."""
        removed: list[Rejected[T]] = []
        while (error := short()) is not None:
            last = self._last.first()
            if last is None or last.order[0] <= newcomer.order[0]:
                break
            self._remove(last)
            removed.append(Rejected(last, _rejection(error)))
        rejected = []
        for each in reversed(removed):
            # Keep requests that hold none of the scarce resource.
            self._add(each.waiting)
            if short() is not None:
                self._remove(each.waiting)
                rejected.append(each)
        return rejected

    def _most_bytes(self) -> int | None:
        """The limit after a change, at least the memory held before it: only new memory rejects other requests."""
        return None if self._max_bytes is None else max(self._max_bytes, self.held_bytes)

    def _short(self, full: bool, active: int, most_bytes: int | None) -> OverloadedError | None:
        if full:
            problem = f"{active} requests are under way and {self.waiting} wait, the most allowed"
            return OverloadedError(_REQUESTS, problem, "retry later", "raise it")
        if most_bytes is not None and self.held_bytes > most_bytes:
            problem = f"waiting requests hold {self._max_bytes} bytes already, the most allowed"
            return OverloadedError(_BYTES, problem, "retry later", "raise it")
        return None

    def _add(self, request: WaitingRequest[T]) -> None:
        priority, number = request.order
        self._held_memory.add(request.held)
        self._waiting[request.key] = request
        self._last.add(request.key, (-priority, -number), request)
        if request.ready:
            self._ready.add(request.key, request.order, request)
            self._last_ready.add(request.key, (-priority, -number), request)

    def _remove(self, request: WaitingRequest[T]) -> None:
        self._held_memory.remove(request.held)
        del self._waiting[request.key]
        for order in (self._last, self._ready, self._last_ready):
            order.remove(request.key)


_REQUESTS, _BYTES = "engine.max_waiting_requests", "engine.max_waiting_bytes"


def _rejection(error: OverloadedError) -> OverloadedError:
    problem = f"the request was rejected for a more urgent one: {error.problem}"
    return OverloadedError(error.field, problem, "retry later, with a lower priority number", "raise it")
