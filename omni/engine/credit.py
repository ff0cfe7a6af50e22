"""The credit of a request's producer on each of its edges."""

from collections.abc import Iterable

from omni.engine.faults import Mailbox
from omni.pipeline import Edge
from omni.stage import Pause, Resume, StageWorker


class Credit:
    """Limits how far a producer runs ahead with one request: by the payloads of each of its edges that are sent but not
    yet acquired by their consumer. While the credit of any edge is used up, the request is paused at the producer.

    An edge's credit is used up when its payloads reach the limit, until half of them are back. Payloads without tensors
    count as well: they hold host memory here, on the way, and at the consumer.

    changed: collects the credits to `report`. A credit that is used up and returned in between needs no report.
    """

    def __init__(
        self, request_id: str, producer: Mailbox | StageWorker, edges: Iterable[Edge], changed: "dict[Credit, None]"
    ) -> None:
        """producer: of the inbox that gets the messages. edges: all of the producer."""
        self._request_id = request_id
        self._producer = producer
        self._limits = {edge.name: edge.credit for edge in edges}
        self._outstanding = dict.fromkeys(self._limits, 0)
        self._used_up: set[str] = set()
        self._changed = changed
        self._paused = False
        self._closed = False

    def acquire(self, edge: str) -> None:
        """Counts a payload that was sent."""
        self._outstanding[edge] += 1
        if edge not in self._used_up and self._outstanding[edge] >= self._limits[edge]:
            self._used_up.add(edge)
            self._changed[self] = None

    def release(self, edge: str) -> None:
        """Counts a payload that a consumer acquired or released."""
        self._outstanding[edge] -= 1
        if self._outstanding[edge] <= self._limits[edge] // 2:
            self.close_edge(edge)

    def close_edge(self, edge: str) -> None:
        """The edge no longer pauses the producer: half of its credit is back, or it gets no more payloads."""
        if edge in self._used_up:
            self._used_up.discard(edge)
            self._changed[self] = None

    def report(self) -> bool:
        """Pauses or resumes the request at the producer if necessary. Returns whether it did."""
        paused = bool(self._used_up)
        if self._closed or paused == self._paused:
            return False
        self._paused = paused
        self._producer.inbox.append(Pause(self._request_id) if paused else Resume(self._request_id))
        return True

    def close(self) -> None:
        """The producer is done with the request, or will be soon: no more pauses and resumes."""
        self._closed = True
