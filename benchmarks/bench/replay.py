"""Time on the device, between events, without the host's share."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

H200_BANDWIDTH = 4.3e12
"""Bytes per second that a copy reads and writes on one H200, about: for scripts that print shares as they search. Results are set
against `report.copy_bandwidth` of the same run."""
_AHEAD = 3
"""Parts of a neighbour's work that are launched and not complete."""
_RUNS, _PARTS = 8, 8
"""Runs beside a neighbour that are timed together, and parts of its work alone."""


def event_seconds(run: Callable[[], object], repeats: int, *, warm: int = 2) -> float:
    """Median of `repeats` runs on the current stream, each waited for, after `warm` that do not count."""
    return seconds_in_turns([run], repeats, warm=warm)[0]


def seconds_in_turns(runs: Sequence[Callable[[], object]], repeats: int, *, warm: int = 2) -> list[float]:
    """As `event_seconds`, of each of `runs`. They take turns: what drifts meanwhile changes all of them alike."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(warm + repeats):
        for run, own in zip(runs, times, strict=True):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            end.record()
            end.synchronize()
            own.append(start.elapsed_time(end) / 1000)
    return [float(statistics.median(own[warm:])) for own in times]


def replayed_seconds(calls: Sequence[Callable[[], object]], *, replays: int = 9, tidy: bool = True) -> float:
    """Seconds of one call: the median over replays of one graph of all calls, divided by their number. tidy: as for `captured`.
    Raises the error of a call."""
    with captured(calls, tidy=tidy) as replay:
        return event_seconds(replay, replays) / len(calls)


class SharedSeconds(NamedTuple):
    """took: by a run beside other work. lost: by that work meanwhile."""

    took: float
    lost: float


class Neighbour:
    """Work that keeps a stream of its own busy, for times beside it. call: a part of it, which is captured."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._stream, self._graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            call()
        with torch.cuda.graph(self._graph, stream=self._stream):
            self._kept = call()
        self._alone: float | None = None

    def seconds_in_turns(self, runs: Sequence[Callable[[], object]], turns: int) -> list[SharedSeconds]:
        """Of each of `runs` on the current stream, beside this work. Medians of turns, by their sums."""
        if self._alone is None:
            self._alone = self._seconds_alone()
        alone = self._alone
        times = [[self._seconds(run, alone) for run in runs] for _ in range(turns)]
        return [sorted(own, key=sum)[turns // 2] for own in zip(*times, strict=True)]

    def _seconds_alone(self) -> float:
        """Of a part. Parts follow each other, so that no launch counts."""
        parts = [self._launch() for _ in range(_AHEAD + _PARTS)]
        parts[-1].synchronize()
        return float(parts[_AHEAD - 1].elapsed_time(parts[-1])) / 1000 / _PARTS

    def _seconds(self, run: Callable[[], object], alone: float) -> SharedSeconds:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        parts = [self._launch() for _ in range(_AHEAD)]
        parts[0].synchronize()
        start.record()
        for _ in range(_RUNS):
            run()
        end.record()
        while not end.query():
            if parts[-_AHEAD].query():
                parts.append(self._launch())
        parts[-1].synchronize()
        took = start.elapsed_time(end) / 1000 / _RUNS
        # Whole parts, from the end of one to the end of another.
        inside = [part for part in parts if start.elapsed_time(part) > 0 and part.elapsed_time(end) > 0]
        if len(inside) < 2:
            return SharedSeconds(took, took)  # it lost all
        part = inside[0].elapsed_time(inside[-1]) / 1000 / (len(inside) - 1)
        # Never negative: what is noise alone would otherwise pay for a slower run.
        return SharedSeconds(took, took * max(1 - alone / part, 0.0))

    def _launch(self) -> torch.cuda.Event:
        """Returns the end of a part."""
        with torch.cuda.stream(self._stream):
            self._graph.replay()
            end = torch.cuda.Event(enable_timing=True)
            end.record()
        return end


@contextmanager
def captured(
    calls: Sequence[Callable[[], object]], *, warm: int = 2, tidy: bool = True, priority: int = 0
) -> Iterator[Callable[[], None]]:
    """While entered, a stream of its own is the current one. Yields the replay of one graph of all calls.

    The results of the calls are kept until then, so each writes to memory of its own. warm: runs of the first calls before the
    capture. tidy: collects garbage before it, as `torch.cuda.graph` does; without, thousands of captures take less time. priority:
    of the stream. Raises the error of a call.
    """
    stream, graph = torch.cuda.Stream(priority=priority), torch.cuda.CUDAGraph()
    # The calls read the results of work that the caller enqueued on its stream.
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm):
            for call in calls[:4]:
                call()
        stream.synchronize()
        if tidy:
            with torch.cuda.graph(graph, stream=stream):
                kept = [call() for call in calls]
        else:
            graph.capture_begin()
            try:
                kept = [call() for call in calls]
            finally:
                graph.capture_end()
        yield graph.replay
        del kept
