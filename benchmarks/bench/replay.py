"""Time on the device, between events, without the host's share."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

H200_BANDWIDTH = 4.3e12
"""Bytes per second that a copy reads and writes on one H200, about: for scripts that print shares as they search. Results are set
against `report.copy_bandwidth` of the same run."""


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


@contextmanager
def captured(
    calls: Sequence[Callable[[], object]], *, warm: int = 2, tidy: bool = True
) -> Iterator[Callable[[], None]]:
    """While entered, a stream of its own is the current one. Yields the replay of one graph of all calls.

    The results of the calls are kept until then, so each writes to memory of its own. warm: runs of the first calls before the
    capture. tidy: collects garbage before it, as `torch.cuda.graph` does; without, thousands of captures take less time. Raises the
    error of a call.
    """
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
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
