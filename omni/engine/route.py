"""The route of a request over an edge: connector, adapter and payloads under way. The producer's credit on its
edges."""

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from omni.connector import Connector, Pending, Received, Ref
from omni.device import COMPLETED, Stream
from omni.errors import OmniError, known
from omni.pipeline import Edge
from omni.pipeline.adapter import Adapter
from omni.stage import Ended, Feed, Lease, Pause, Produced, Resume, StageWorker

_log = logging.getLogger(__name__)


class Credit:
    """Limits how far a producer runs ahead with one request: by the payloads of each of its edges that are sent but not
    yet acquired by their consumer. While the credit of any edge is used up, the request is paused at the producer.

    An edge's credit is used up when its payloads reach the limit, until half of them are back. Payloads without tensors
    hold no device memory and do not count.

    changed: collects the credits to `report`. A credit that is used up and returned in between needs no report.
    """

    def __init__(
        self, request_id: str, producer: StageWorker, edges: Iterable[Edge], changed: "dict[Credit, None]"
    ) -> None:
        """edges: all edges of the producer."""
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


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A payload under way. counted: whether it has tensors, and so counts against the edge's credit."""

    ref: Ref
    pending: Pending
    counted: bool


class Route:
    """Moves payloads in order from producer to consumer, through the connector, then through the adapter."""

    def __init__(
        self,
        request_id: str,
        edge: Edge,
        adapter: Adapter,
        connector: Connector,
        consumer: StageWorker,
        stream: Stream,
        credit: Credit,
    ) -> None:
        self.edge = edge
        self.request_id = request_id
        self._adapter = adapter
        self._connector = connector
        self._consumer = consumer
        self._stream = stream
        self._credit = credit
        self._under_way: deque[_UnderWay] = deque()
        self._end_reason: str | None = None
        self.closed = False

    @property
    def busy(self) -> bool:
        """Whether `tick` has something to do, now or later."""
        return bool(self._under_way) or (self._end_reason is not None and not self.closed)

    def send(self, produced: Produced) -> None:
        """Sends a payload of the producer. Raises OmniError if the connector fails."""
        try:
            ref = self._connector.send(produced.payload, produced.ready, self._stream)
        except Exception as error:
            raise self._known("sending a payload", error) from error
        produced.add(ref)
        try:
            pending = self._connector.receive(ref, self._stream)
        except Exception as error:
            self._give_up(ref, "it cannot be received")
            raise self._known("receiving a payload", error) from error
        counted = bool(produced.payload.tensors)
        self._under_way.append(_UnderWay(ref, pending, counted))
        if counted:
            self._credit.acquire(self.edge.name)

    def end(self, reason: str) -> None:
        """The producer is done. The consumer's `Ended` follows the payloads under way."""
        self._end_reason = reason

    def tick(self) -> bool:
        """Delivers payloads that have arrived. Raises OmniError if a payload was lost or the adapter failed."""
        moved = False
        while self._under_way:
            try:
                received = self._under_way[0].pending.poll()
            except Exception as error:
                raise self._known("receiving a payload", error) from error
            if received is None:
                return moved
            self._deliver(self._under_way[0], received)
            moved = True
        if self._end_reason is not None and not self.closed:
            self._close(self._end_reason)
            moved = True
        return moved

    def abort(self, reason: str) -> None:
        """Gives up the payloads under way. The edge no longer pauses its producer."""
        self.closed = True
        while self._under_way:
            self._give_up(self._under_way.popleft().ref, reason)
        self._credit.close_edge(self.edge.name)

    def _deliver(self, item: _UnderWay, received: Received) -> None:
        try:
            inputs = self._adapter.push(received.payload)
        except Exception as error:
            # The payload stays under way, so the request's end gives it up.
            raise self._known("adapting a payload", error) from error
        self._under_way.popleft()
        with_tensors = sum(1 for payload in inputs if payload.tensors)
        acquired = partial(self._credit.release, self.edge.name) if item.counted else _nothing
        lease = Lease(self._connector, item.ref, with_tensors, acquired)
        for payload in inputs:
            feed = Feed(self.request_id, payload, received.ready, lease if payload.tensors else None)
            self._consumer.inbox.append(feed)

    def _give_up(self, ref: Ref, reason: str) -> None:
        """Gives up a payload. If the connector fails, only the payload's memory is lost."""
        try:
            self._connector.abort(ref, reason)
        except Exception:
            _log.exception("%s: the connector failed to abort a payload of request %s", self.edge.name, self.request_id)

    def _close(self, reason: str) -> None:
        self.closed = True
        try:
            inputs = self._adapter.finish(reason)
        except Exception as error:
            raise self._known("adapting a payload", error) from error
        self._consumer.inbox.extend(Feed(self.request_id, payload, COMPLETED) for payload in inputs)
        self._consumer.inbox.append(Ended(self.request_id, self.edge.name))

    def _known(self, doing: str, error: Exception) -> OmniError:
        return known(self.edge.name, doing, error)


def _nothing() -> None:
    pass
