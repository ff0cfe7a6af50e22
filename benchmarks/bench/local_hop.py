"""The hop of a payload between two stages of one engine, over the connector `local`.

The host learns that the producer's event is done by polling it: the event happens between the last poll that finds it
pending, or the hand-over to the connector if there is none, and the first poll that finds it done. The hop ends when the
consumer launches the copy of the payload's rows: the host's time at the beginning of `gather_rows` or `copy_rows`. So from
the producer's event to the consumer's launch it is at most the microseconds from the former moment (`most`), and at least
those from the latter (`least`). An event that was done at the hand-over, and before, counts from the hand-over.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from unittest.mock import patch

from omni.connector import EdgeEnd, Ref, Sender
from omni.device import Event, Phase
from omni.payload import Payload, copier
from omni_local.connector import LocalConnector, LocalRef, LocalSender


@dataclass(slots=True, eq=False)
class Hop:
    """A payload. Nanoseconds of `perf_counter`: handed to the connector; the last poll that found its event pending; the
    first that found it done; launched by the consumer."""

    handed: int
    pending: int = 0
    done: int = 0
    launched: int = 0

    @property
    def since(self) -> int:
        """The last known time before the event: its last pending poll, else the handover."""
        return self.pending or self.handed


@dataclass(slots=True, eq=False)
class _Watched:
    """The producer's event."""

    event: Event
    hop: Hop

    def done(self) -> bool:
        if self.hop.done:
            return True
        done = self.event.done()
        if done:
            self.hop.done = time.perf_counter_ns()
        else:
            self.hop.pending = time.perf_counter_ns()
        return done


_launches = [0]
"""The time of the latest copy of rows that was launched."""


def _noting(phase: Phase) -> Phase:
    """The phase, which the host calls to enqueue it. Under its name, for its category."""

    @wraps(phase)
    def noted(*buffers: object) -> None:
        _launches[0] = time.perf_counter_ns()
        phase(*buffers)

    return noted


class _Ref(LocalRef):
    """The consumer releases the payload right after the launch."""

    def __init__(self, payload: Payload, ready: Event, hops: list[Hop]) -> None:
        self._hop = Hop(time.perf_counter_ns())
        self._hops = hops
        super().__init__(payload, _Watched(ready, self._hop))

    def end(self, after: Event) -> None:
        if not self.released and 0 < self._hop.done < _launches[0]:  # neither aborted nor left out
            self._hop.launched = _launches[0]
            self._hops.append(self._hop)
        super().end(after)


class _Sender(LocalSender):
    def __init__(self, edge: "EdgeHops") -> None:
        self._edge = edge

    def send(self, payload: Payload, ready: Event) -> Ref:
        self._edge.sent.append(time.perf_counter_ns())
        return _Ref(payload, ready, self._edge.hops) if payload.tensors else super().send(payload, ready)


@dataclass(slots=True)
class EdgeHops:
    """Hops of payloads with tensors. sent: time of each payload's handover, also of host data."""

    hops: list[Hop] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)

    def clear(self) -> None:
        self.hops.clear()
        self.sent.clear()


Hops = dict[str, EdgeHops]
"""Hops by edge."""


def while_both_decode(edge: EdgeHops, behind: EdgeHops) -> list[Hop]:
    """The hops of an edge while its producer and its consumer, the producer of `behind`, make payloads."""
    begin, end = max(edge.sent[0], behind.sent[0]), min(edge.sent[-1], behind.sent[-1])
    return [hop for hop in edge.hops if begin <= hop.handed <= end]


@contextmanager
def watched_hops() -> Iterator[Hops]:
    """Watches the engines of this process that are opened while entered."""
    hops: Hops = {}

    def sender(connector: LocalConnector, end: EdgeEnd) -> Sender:
        return _Sender(hops.setdefault(end.edge, EdgeHops()))

    with (
        patch.object(LocalConnector, "sender", sender),
        patch.object(copier, "gather_rows", _noting(copier.gather_rows)),
        patch.object(copier, "copy_rows", _noting(copier.copy_rows)),
    ):
        yield hops


@dataclass(frozen=True, slots=True)
class HopTimes:
    """Microseconds. late: the share of hops whose event was pending at the hand-over. turn: between two polls of one that
    was, the engine's round."""

    edge: str
    requests: int
    hops: int
    least_p50: float
    least_p99: float
    most_p50: float
    most_p99: float
    late: float
    turn_p50: float
    turn_p99: float


def times_of(edge: str, requests: int, hops: Sequence[Hop]) -> HopTimes:
    late = [hop for hop in hops if hop.pending]
    least = _quantiles([hop.launched - hop.done for hop in hops])
    most = _quantiles([hop.launched - hop.since for hop in hops])
    turn = _quantiles([hop.done - hop.pending for hop in late] or [0])
    return HopTimes(edge, requests, len(hops), *least, *most, len(late) / len(hops), *turn)


def _quantiles(nanoseconds: list[int]) -> tuple[float, float]:
    """p50 and p99, in microseconds."""
    values = sorted(nanoseconds)
    return statistics.median(values) / 1000, values[max(int(len(values) * 0.99) - 1, 0)] / 1000
