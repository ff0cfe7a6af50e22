"""Time on the device, between events, without the host's share."""

import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

H200_BANDWIDTH = 4.3e12
"""Bytes per second that a copy reads and writes on one H200, about: for scripts that print shares as they search. Results are set
against `report.copy_bandwidth` of the same run."""
_AHEAD = 2
"""Parts of a neighbour's work that are launched and not complete."""


def event_seconds(run: Callable[[], object], repeats: int, *, warm: int = 2) -> float:
    """Median of `repeats` runs on the current stream, each waited for, after `warm` that do not count."""
    return seconds_in_turns([run], repeats, warm=warm)[0]


def seconds_in_turns(
    runs: Sequence[Callable[[], object]], repeats: int, *, warm: int = 2, meanwhile: Callable[[], object] | None = None
) -> list[float]:
    """As `event_seconds`, of each of `runs`. They take turns: what drifts meanwhile changes all of them alike. meanwhile: called
    before each run, and over and over until its end."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(warm + repeats):
        for run, own in zip(runs, times, strict=True):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            if meanwhile is not None:
                meanwhile()
            start.record()
            run()
            end.record()
            while meanwhile is not None and not end.query():
                meanwhile()
            end.synchronize()
            own.append(start.elapsed_time(end) / 1000)
    return [float(statistics.median(own[warm:])) for own in times]


def replayed_seconds(calls: Sequence[Callable[[], object]], *, replays: int = 9, tidy: bool = True) -> float:
    """Seconds of one call: the median over replays of one graph of all calls, divided by their number. tidy: as for `captured`.
    Raises the error of a call."""
    with captured(calls, tidy=tidy) as replay:
        return event_seconds(replay, replays) / len(calls)


class Neighbour:
    """Work that keeps a stream of its own busy, for times beside it. call: a part of it, which is captured."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._stream, self._graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            call()
        with torch.cuda.graph(self._graph, stream=self._stream):
            self._kept = call()
        self._ends = deque[torch.cuda.Event]()

    def seconds_in_turns(self, runs: Sequence[Callable[[], object]], repeats: int) -> list[float]:
        """As the function of that name, of runs beside this work."""
        return seconds_in_turns(runs, repeats, meanwhile=self._top_up)

    def _top_up(self) -> None:
        while self._ends and self._ends[0].query():
            self._ends.popleft()
        while len(self._ends) < _AHEAD:
            with torch.cuda.stream(self._stream):
                self._graph.replay()
                end = torch.cuda.Event()
                end.record()
            self._ends.append(end)


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
