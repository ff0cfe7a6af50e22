"""The hop of a payload between two stages of one engine, over the connector `local`.

The host learns that the producer's event is done by polling it: the event happens between the last poll that finds it
pending and the first that finds it done. Both are polls of the producer, for a hidden state, which is complete with its
token; or of the consumer, for frames, which are complete later. The hop ends when the consumer launches the copy of the
payload's rows: the host's time at the beginning of `gather_rows` or `copy_rows`. So from the producer's event to the
consumer's launch it is at most the microseconds from the former moment (`most`), and at least those from the latter
(`least`). On the CPU a step is complete when it is launched, and `most` contains its whole launch.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from unittest.mock import patch

from omni.connector import EdgeEnd, Ref, Sender
from omni.device import Event, Phase
from omni.engine import Engine, EngineOutput, EngineRequest, RequestFailed, RequestFinished, Sink
from omni.payload import Payload, copier
from omni.stage import Produced
from omni_ar.run.output_processor import OutputProcessor
from omni_local.connector import LocalConnector, LocalRef, LocalSender


@dataclass(slots=True, eq=False)
class Hop:
    """A payload. Nanoseconds of `perf_counter`: handed to the connector; launched by the consumer; of the event, the last
    poll that found it pending, and the first that found it done. polled: whether these are the consumer's polls."""

    handed: int
    pending: int
    done: int
    launched: int = 0
    polled: bool = False


@dataclass(slots=True, eq=False)
class _Watched:
    """The producer's event."""

    event: Event
    hop: Hop

    def done(self) -> bool:
        done = self.event.done()
        if not done:
            self.hop.pending, self.hop.polled, self.hop.done = time.perf_counter_ns(), True, 0
        elif not self.hop.done:
            self.hop.done = time.perf_counter_ns()
        return done


@dataclass(slots=True)
class _Polls:
    """Of output processors. ended: when the last poll of each ended: it had read every step that was complete, so that
    the next step was pending or not launched. reading: of the poll under way, the end of the one before and its own
    beginning. emitted: these two of each payload, by its identity."""

    ended: dict[int, int] = field(default_factory=dict)
    reading: tuple[int, int] = (0, 0)
    emitted: dict[int, tuple[int, int]] = field(default_factory=dict)


_polls = _Polls()
_poll, _page_slice = OutputProcessor.poll, OutputProcessor._page_slice


def _noted_poll(self: OutputProcessor) -> bool:
    now = time.perf_counter_ns()
    _polls.reading = _polls.ended.get(id(self), now), now
    moved = _poll(self)
    _polls.ended[id(self)] = time.perf_counter_ns()
    return moved


def _noted_page_slice(self: OutputProcessor, *arguments: Any) -> Produced:
    produced = _page_slice(self, *arguments)
    _polls.emitted[id(produced.payload)] = _polls.reading
    return produced


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
        self._hop = Hop(time.perf_counter_ns(), *_polls.emitted.pop(id(payload)))
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


_submit = Engine.submit


def _submit_held(self: Engine, request: EngineRequest, sink: Sink) -> None:
    """The user's threads get the outputs at the end of the request: meanwhile they wait, and none takes the interpreter
    lock from the engine's, as in a process of its own."""
    held: list[EngineOutput] = []

    def hold(output: EngineOutput) -> None:
        held.append(output)
        if isinstance(output, RequestFinished | RequestFailed):
            for each in held:
                sink(each)

    _submit(self, request, hold)


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
        patch.object(Engine, "submit", _submit_held),
        patch.object(OutputProcessor, "poll", _noted_poll),
        patch.object(OutputProcessor, "_page_slice", _noted_page_slice),
        patch.object(copier, "gather_rows", _noting(copier.gather_rows)),
        patch.object(copier, "copy_rows", _noting(copier.copy_rows)),
    ):
        yield hops


@dataclass(frozen=True, slots=True)
class HopTimes:
    """Microseconds. late: the share of hops whose event was pending at the hand-over. turn: between the last poll that
    found the event pending and the first that found it done."""

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
    least = _quantiles([hop.launched - hop.done for hop in hops])
    most = _quantiles([hop.launched - hop.pending for hop in hops])
    turn = _quantiles([hop.done - hop.pending for hop in hops])
    late = sum(hop.polled for hop in hops) / len(hops)
    return HopTimes(edge, requests, len(hops), *least, *most, late, *turn)


def _quantiles(nanoseconds: list[int]) -> tuple[float, float]:
    """p50 and p99, in microseconds."""
    values = sorted(nanoseconds)
    return statistics.median(values) / 1000, values[max(int(len(values) * 0.99) - 1, 0)] / 1000
