"""Which requests are let in, and who waits."""

import heapq
import itertools
from dataclasses import dataclass

from omni.engine.outlet import Outlet
from omni.engine.request import EngineRequest
from omni.errors import OverloadedError


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checked request that is not at the stages yet: host memory only. rank: priority and arrival number."""

    request: EngineRequest
    outlet: Outlet
    rank: tuple[int, int]


class Admission:
    """At most `max_active` requests are at the stages at once. Up to `max_waiting` more wait, by priority, then arrival.

    Joining, leaving and being next cost the logarithm of how many wait; waiting costs nothing.
    """

    def __init__(self, max_active: int, max_waiting: int) -> None:
        self._max_active = max_active
        self._max_waiting = max_waiting
        self._numbers = itertools.count()
        self._waiting: dict[str, Candidate] = {}
        self._order: list[tuple[tuple[int, int], str]] = []
        """A heap. Who left is still in it, and is told by being in `_waiting` no more, or with another rank."""

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def join(self, request: EngineRequest, outlet: Outlet, active: int) -> None:
        """Puts a request among those that wait. active: how many are at the stages. Raises OverloadedError."""
        if active >= self._max_active and self.waiting >= self._max_waiting:
            raise OverloadedError(
                "engine.max_waiting_requests",
                f"{active} requests are under way and {self.waiting} wait, which is the most that may",
                "ask again later, or raise it",
            )
        candidate = Candidate(request, outlet, (request.priority, next(self._numbers)))
        self._waiting[request.id] = candidate
        heapq.heappush(self._order, (candidate.rank, request.id))

    def next(self, active: int) -> Candidate | None:
        """The request that is let in now, if any."""
        while self._order and active < self._max_active:
            rank, request_id = heapq.heappop(self._order)
            candidate = self._waiting.get(request_id)
            if candidate is not None and candidate.rank == rank:
                del self._waiting[request_id]
                return candidate
        return None

    def leave(self, request_id: str) -> Candidate | None:
        """The request does not wait any more. None if it did not."""
        candidate = self._waiting.pop(request_id, None)
        if len(self._order) > 2 * len(self._waiting) + 16:
            self._order = [(one.rank, one.request.id) for one in self._waiting.values()]
            heapq.heapify(self._order)
        return candidate

    def leave_all(self) -> list[Candidate]:
        """Nobody waits any more."""
        candidates = list(self._waiting.values())
        self._waiting.clear()
        self._order.clear()
        return candidates
